// Package treecopy copies uploaded trees into containers that have not started yet.
//
//	Uploads ──► digest, disk watch ──► treetar.Rewrite ──► Engine
//
// A tree is streamed from the store to the engine, so a copy needs little memory and no other disk space. If only the
// end of an upload is invalid, the container already has the upload's files. The create then fails, and the container
// is removed.
//
// The package imports protocol and treetar.
package treecopy
