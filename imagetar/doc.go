// Package imagetar reads the files that images are imported from: archives from docker save, OCI image layouts
// as tar, and root filesystems, compressed or not.
//
//	file ── Inspect ──► its format and names          (before it is uploaded)
//	file ── Open ──► plain tar ── Rename ──► archive with one name, for an engine
//
// Its only I/O is through the given readers and writers. It does not depend on an engine.
package imagetar
