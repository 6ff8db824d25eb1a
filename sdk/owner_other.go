//go:build !unix

package sdk

import "io/fs"

// owner is root, where files have no numeric owners.
func owner(fs.FileInfo) (uid, gid int) { return 0, 0 }
