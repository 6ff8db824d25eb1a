// Package treetar rewrites the tar stream of an uploaded tree. An engine unpacks the new stream in a container without
// further checks. The uploader is not trusted, so the new stream has only directories, regular files and links that
// stay inside the tree.
//
//	uploaded stream ──► rewrite.go ──► stream for the engine
//	                       │ each header
//	                    entry.go   accept it, or refuse the whole tree
//
// The package is pure: it reads one stream and writes another, in memory that does not grow with the tree, and
// opens no file and no connection. It imports protocol only.
package treetar
