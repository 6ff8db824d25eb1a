// Package files works on the files in a container, and connects to servers in it. A helper in the container does the
// work, as one user of the container.
//
//	caller ──► Session ──► helper, idle or new ══ packets ══► supervisor/files, in the container
//	           (one operation each)            ◄─ descriptor of a regular file, or of a connection
//
// A session starts a helper when an operation finds no idle one, and ends a helper that was idle for a while. If an
// operation is cancelled, the session closes its connection, and the helper ends.
//
// The container's root can replace what a helper says. So everything that comes from a helper is bounded. A
// descriptor is used only if it is a regular file on a file system whose reads end, or a connected socket. No
// path from a helper is used on the host. Bytes are written by the helper, never by this process: so the kernel
// accounts them to the sandbox, and checks the user's permissions. If a user may not give files away, this process sets
// their owner, within the limits of what the container's root could do.
//
// The package imports protocol, supervisor/control and supervisor/packet.
package files
