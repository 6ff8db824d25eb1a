// Package treecopy copies uploaded trees into containers that have not started yet.
//
//	Uploads ──► digest, disk watch ──► treetar.Rewrite ──► Engine
//
// Everything is one stream, so a copy needs little memory and no space on the worker's disk. If an upload turns out to
// be wrong at its end, its files are in the container already; the create fails then, and the container is removed.
//
// The package imports protocol and treetar.
package treecopy
