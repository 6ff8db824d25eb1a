// Package imagetar reads the files that images are imported from: archives as docker save writes
// them, OCI image layouts as a tar, and root filesystems, plain or compressed.
//
//	file ── Inspect ──► what it is                    (before it is uploaded)
//	file ── Open ──► plain tar ── Rename ──► archive with one name, for an engine
//
// It is pure but for the readers and writers that it is given, and knows no engine.
package imagetar
