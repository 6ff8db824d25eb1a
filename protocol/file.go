package protocol

import (
	"strings"
	"time"
)

// Limits of operations on the files of a sandbox.
const (
	MaxFilePath        = 4096     // bytes of a path
	MaxFilePaths       = 256      // paths in one [FileStat]
	MaxFilePatterns    = 64       // patterns in one request
	MaxFilePattern     = 4096     // bytes of a pattern
	MaxFileEdit        = 16 << 20 // bytes of a file that is edited, before and after the edit
	MaxFileEditText    = 1 << 20  // bytes of the old and of the new text of an edit
	MaxFilePage        = 5000     // entries of one page
	DefaultFilePage    = 1000
	MaxFileMatches     = 10_000 // matches of one [FileGrep]
	DefaultFileMatches = 1000
	MaxFileLine        = 4096 // bytes of a line in a [FileMatch]
	DefaultFileLine    = 512
	MaxFileSkips       = 100 // paths that a result names as left out; the result counts all of them

	// MaxFileResult limits the encoded size of a result, in bytes. A page ends early so that it fits.
	MaxFileResult = 768 << 10

	MaxFileGrepBytes     = Bytes(16 << 30) // bytes that one [FileGrep] may read
	DefaultFileGrepBytes = Bytes(1 << 30)
)

// FileType says what a path names.
type FileType string

// The types of files.
const (
	FileRegular   FileType = "file"
	FileDirectory FileType = "directory"
	FileLink      FileType = "link"
	FileFIFO      FileType = "fifo"
	FileSocket    FileType = "socket"
	FileDevice    FileType = "device"
	FileUnknown   FileType = "unknown"
)

// FileInfo describes a file. Names are bytes to the kernel, so a path may be invalid UTF-8: msgpack keeps the bytes,
// JSON replaces the invalid ones.
type FileInfo struct {
	Path     string    `json:"path"` // as asked, or below the directory that was asked for
	Type     FileType  `json:"type"`
	Size     int64     `json:"size"`                // bytes
	Mode     uint32    `json:"mode"`                // permission bits with setuid, setgid and sticky: 0 to 07777
	UID      uint32    `json:"uid"`                 // owner
	GID      uint32    `json:"gid"`                 // group
	Owner    string    `json:"owner,omitempty"`     // name in the container's /etc/passwd
	Group    string    `json:"group,omitempty"`     // name in the container's /etc/group
	Modified time.Time `json:"modified"`            // the last change of the content
	Changed  time.Time `json:"changed"`             // the last change of the content, the mode, the owner or the links
	Accessed time.Time `json:"accessed"`            // the last read, as far as the file system records it
	Target   string    `json:"target,omitempty"`    // where a symbolic link leads
	Links    uint64    `json:"links,omitempty"`     // number of names
	Inode    uint64    `json:"inode,omitempty"`     // number of the file in its file system
	LinkGone bool      `json:"link_gone,omitempty"` // a symbolic link that leads nowhere; only with FileStat.Follow
}

// FileRead reads a part of a regular file.
type FileRead struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"` // bytes; beyond the end, nothing is read
	Length int64  `json:"length,omitempty"` // bytes; 0: to the end
}

// FileWriteMode says what a write does with a file that exists.
type FileWriteMode string

// The modes of a write.
const (
	FileReplace FileWriteMode = "replace" // the default: replace the file atomically, when all bytes have arrived
	FileCreate  FileWriteMode = "create"  // refuse with already_exists if the path exists
	FileAppend  FileWriteMode = "append"  // write at the end, as the bytes arrive
)

// FileWrite writes a regular file from a stream. Until all bytes have arrived, a reader sees the old file, except with
// [FileAppend]. A replaced file keeps its mode. It belongs to the user of the operation unless Owner is set.
type FileWrite struct {
	Path    string        `json:"path"`
	How     FileWriteMode `json:"how,omitempty"`
	Mode    *uint32       `json:"mode,omitempty"`    // 0 to 07777; default: the old file's, or 0644
	Owner   string        `json:"owner,omitempty"`   // "uid[:gid]"; see [FileOwner]
	Parents bool          `json:"parents,omitempty"` // create missing directories, with mode 0755
}

// FileStat asks about several paths.
type FileStat struct {
	Paths  []string `json:"paths"`            // at most [MaxFilePaths]
	Follow bool     `json:"follow,omitempty"` // describe what a symbolic link leads to, not the link
}

// FileStats answers a [FileStat], in the order of its paths.
type FileStats struct {
	Files []FileResult `json:"files"`
}

// FileResult is the description of one path, or the error for that path. Exactly one field is set.
type FileResult struct {
	File  *FileInfo `json:"file,omitempty"`
	Error *Error    `json:"error,omitempty"`
}

// FileList lists a directory, sorted by the bytes of the names. A directory comes before its content.
type FileList struct {
	Path   string `json:"path"`
	Depth  int    `json:"depth,omitempty"`  // levels below the directory; default 1, -1: all
	Hidden bool   `json:"hidden,omitempty"` // include names that begin with a dot
	Limit  int    `json:"limit,omitempty"`  // entries of a page; default [DefaultFilePage], at most [MaxFilePage]
	Page   string `json:"page,omitempty"`   // [FilePage.Next] of the page before
}

// FilePage is a page of files. Their paths are relative to the directory that was asked for.
type FilePage struct {
	Files   []FileInfo `json:"files"`
	Next    string     `json:"next,omitempty"`    // asks for the next page; empty: this is the last page
	Token   string     `json:"token,omitempty"`   // only from [FileChanges]; asks for later changes
	Skipped []FileSkip `json:"skipped,omitempty"` // at most [MaxFileSkips]
	Skips   int64      `json:"skips,omitempty"`   // number of paths that were left out
}

// FileSkip is a path that an operation left out, and why.
type FileSkip struct {
	Path  string `json:"path"`
	Error *Error `json:"error"`
}

// FileMkdir creates a directory.
type FileMkdir struct {
	Path    string  `json:"path"`
	Parents bool    `json:"parents,omitempty"` // create missing parents, and accept that the directory exists
	Mode    *uint32 `json:"mode,omitempty"`    // 0 to 07777; default 0755; also of a directory that exists
	Owner   string  `json:"owner,omitempty"`   // "uid[:gid]"; see [FileOwner]
}

// FileMove renames a file or a directory. If both paths are not on one file system, it copies and then removes.
type FileMove struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Overwrite bool   `json:"overwrite,omitempty"` // replace a file, or an empty directory, at To
}

// FileCopy copies a file, or a directory with its content. Links are copied as links.
type FileCopy struct {
	From      string `json:"from"`
	To        string `json:"to"`                  // the path of the copy, not of a directory to copy into
	Recursive bool   `json:"recursive,omitempty"` // copy directories; without it, a directory is refused
	Overwrite bool   `json:"overwrite,omitempty"` // replace files that exist, and use directories that exist
}

// FileRemove removes a file or a directory.
type FileRemove struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"` // remove a directory with its content
	Missing   bool   `json:"missing,omitempty"`   // accept that the path does not exist
}

// FileCount answers operations on whole trees.
type FileCount struct {
	Entries int64      `json:"entries"`           // files, directories and links
	Bytes   int64      `json:"bytes,omitempty"`   // bytes of regular files
	Skipped []FileSkip `json:"skipped,omitempty"` // at most [MaxFileSkips]
	Skips   int64      `json:"skips,omitempty"`   // number of paths that were left out
}

// FileGlob finds the paths below a directory that match a pattern, such as "src/**/*.go". It follows no link.
type FileGlob struct {
	Path     string   `json:"path"`               // the directory to search
	Pattern  string   `json:"pattern"`            // with ** for any number of directories, and {a,b}
	Excludes []string `json:"excludes,omitempty"` // patterns of paths that are left out with all that is below them
	Hidden   bool     `json:"hidden,omitempty"`   // include names that begin with a dot
	Limit    int      `json:"limit,omitempty"`    // as in [FileList]
	Page     string   `json:"page,omitempty"`     // as in [FileList]
}

// FileGrep finds the lines that match a regular expression (RE2). Files with a NUL byte near their beginning are
// binary, and are left out without mention.
type FileGrep struct {
	Path       string   `json:"path"`                  // a file, or a directory to search
	Expression string   `json:"expression"`            // RE2
	Include    []string `json:"include,omitempty"`     // patterns as in [FileGlob]; default: all files
	Excludes   []string `json:"excludes,omitempty"`    // as in [FileGlob]
	IgnoreCase bool     `json:"ignore_case,omitempty"` // match letters of either case
	Hidden     bool     `json:"hidden,omitempty"`      // search names that begin with a dot
	Limit      int      `json:"limit,omitempty"`       // default [DefaultFileMatches], at most [MaxFileMatches]
	LineBytes  int      `json:"line_bytes,omitempty"`  // of a match; default [DefaultFileLine], at most [MaxFileLine]

	// MaxBytes limits how much is read. Default [DefaultFileGrepBytes], at most [MaxFileGrepBytes].
	MaxBytes Bytes `json:"max_bytes,omitempty"`
}

// FileMatches answers a [FileGrep].
type FileMatches struct {
	Matches []FileMatch `json:"matches"`
	Stopped string      `json:"stopped,omitempty"` // the limit that ended the search: "limit" or "max_bytes"
	Files   int64       `json:"files"`             // number of files that were searched
	Bytes   int64       `json:"bytes"`             // bytes that were read
	Skipped []FileSkip  `json:"skipped,omitempty"` // at most [MaxFileSkips]
	Skips   int64       `json:"skips,omitempty"`   // number of paths that were left out
}

// FileMatch is one line that matches.
type FileMatch struct {
	Path   string `json:"path"`             // relative to the directory that was searched; empty: the file itself
	Line   int64  `json:"line"`             // number of the line, from 1
	Column int    `json:"column"`           // column of the first match, in bytes from 1
	Text   []byte `json:"text"`             // the line without its end
	Cut    bool   `json:"cut,omitempty"`    // the line is longer than Text, which then begins at Offset
	Offset int64  `json:"offset,omitempty"` // offset of Text in its line, in bytes
}

// FileEdit replaces a text in a file of at most [MaxFileEdit] bytes. The file changes atomically, as with
// [FileReplace].
type FileEdit struct {
	Path string `json:"path"`
	Old  []byte `json:"old"`           // exact bytes; refused with reason no_match if the file does not have them
	New  []byte `json:"new"`           // their replacement
	All  bool   `json:"all,omitempty"` // replace each; without it, reason several_matches if there is more than one
}

// FileEdited answers a [FileEdit].
type FileEdited struct {
	Replaced int      `json:"replaced"` // number of replacements
	File     FileInfo `json:"file"`     // the file after the edit
}

// FileChanges lists what changed below a directory, by the time of change (ctime). A removal shows as a change of its
// directory. A change may be listed twice, and none is left out unless the sandbox's clock was set back.
type FileChanges struct {
	Path  string `json:"path"`
	Since string `json:"since,omitempty"` // [FilePage.Token] of an earlier answer; empty: answer with a token only
	Limit int    `json:"limit,omitempty"` // as in [FileList]
	Page  string `json:"page,omitempty"`  // as in [FileList]
}

// FileWatch reports changes below a directory as they happen.
type FileWatch struct {
	Path      string   `json:"path"`
	Recursive bool     `json:"recursive,omitempty"`
	Excludes  []string `json:"excludes,omitempty"` // as in [FileGlob]
}

// FileEventKind says what happened to a path.
type FileEventKind string

// The kinds of events.
const (
	FileCreated  FileEventKind = "created"
	FileModified FileEventKind = "modified" // the content
	FileChanged  FileEventKind = "changed"  // the mode, the owner or the times
	FileRemoved  FileEventKind = "removed"
	FileMovedOut FileEventKind = "moved_from" // the path is gone; if the new path is watched, moved_to follows
	FileMovedIn  FileEventKind = "moved_to"
	FileWatching FileEventKind = "watching" // the first event: changes from now on are reported

	// FileRescan means that events are missing: the client must read the tree again. FileEvent.Error has the reason.
	FileRescan FileEventKind = "rescan"
)

// FileEvent is one change that a [FileWatch] reports.
type FileEvent struct {
	Kind   FileEventKind `json:"kind"`
	Path   string        `json:"path,omitempty"`   // relative to the watched directory; empty: the directory itself
	Type   FileType      `json:"type,omitempty"`   // directory, or empty: not known
	Cookie uint32        `json:"cookie,omitempty"` // equal in both events of a move
	Error  *Error        `json:"error,omitempty"`  // why a rescan is needed
}

// FileEvents are events in their order.
type FileEvents struct {
	Events []FileEvent `json:"events"`
}

// FilePack reads a directory or a file as a tar stream. Devices, sockets, FIFOs and files that cannot be read are left
// out, and the result names them.
type FilePack struct {
	Path     string   `json:"path"`
	Excludes []string `json:"excludes,omitempty"` // as in [FileGlob]
}

// FileUnpack writes a tar stream below a directory. Entries that would leave the directory are refused, and end the
// operation; so do entries that are neither files, directories nor links.
type FileUnpack struct {
	Path      string `json:"path"`                 // the directory; created if it is missing
	Owner     string `json:"owner,omitempty"`      // "uid[:gid]" of all entries; see [FileOwner]
	KeepOwner bool   `json:"keep_owner,omitempty"` // the owners in the stream; without Owner, entries belong to the user
	Overwrite bool   `json:"overwrite,omitempty"`  // replace files and links that exist
}

// FileDial connects to a server in the sandbox.
type FileDial struct {
	Network string `json:"network"` // "tcp" or "unix"
	Address string `json:"address"` // "host:port" with a numeric address or localhost, or the path of a socket
}

// ValidateFilePath checks a path of a sandbox. Relative paths begin at the sandbox's working directory. Error:
// invalid_argument with the given field.
func ValidateFilePath(field, path string) error {
	switch {
	case path == "":
		return Invalid(field, "must not be empty")
	case len(path) > MaxFilePath:
		return Invalid(field, "has %d bytes, at most %d are allowed", len(path), MaxFilePath)
	case strings.ContainsRune(path, 0):
		return Invalid(field, "must not contain a NUL byte")
	}
	return nil
}

// FileOwner parses "uid[:gid]"; the default gid is the uid. If the kernel does not let the operation's user give files
// to another owner, as in a sandbox with the profile hardened, the worker sets the owner. Error: invalid_argument with
// the given field.
func FileOwner(field, owner string) (uid, gid int, err error) {
	uid, gid, ok := (&Copy{Owner: owner}).Owners()
	if !ok || owner == "" {
		return 0, 0, Invalid(field, "must be a user id with an optional group id, as in 1000 or 1000:1000, got %.80q", owner)
	}
	return uid, gid, nil
}
