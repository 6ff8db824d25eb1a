// Package shell makes an environment from one function that runs a script with a POSIX shell. It does
// everything else with POSIX commands: it reads and writes files, lists directories, runs code, and ends processes.
//
//	Environment ── Script ──> Runner ──> sh, on whatever the runner reaches
//	            <── chunks of output ──
//
// # What the other side needs
//
// A POSIX shell, cat, mkdir, mv, cp, rm, chmod, readlink, env, and base64 with -d, which POSIX does not have. To end
// processes it needs /proc and a grep with -l, -s and -E. BusyBox and Debian have all of them.
//
// # How a script runs
//
// A script prints a random mark before and after the command. Everything before the first mark is dropped: the profile
// of a login shell may print anything. The second mark carries the exit code, so the result waits for the command and
// not for processes in the background that keep the output open. Processes of a script carry its id in their
// environment, as [IDVariable]; a timeout ends the processes that have it, and those in a session that such a process
// leads. A process that both dropped the variable and began a session of its own is not found.
//
// Content of files travels as base64 in a quoted here-document with a random end. An answer that is not valid base64 is
// an error. Large files travel in several scripts.
//
// The package imports only sdk/environment.
package shell
