package control

import "github.com/boxfleet/boxfleet/protocol"

// HelperName is argv[0] of a helper: the supervisor's binary, which a supervisor starts to work on files as one user of
// the container. The working directory is its only further argument.
const HelperName = "boxfleet-files"

// HelperSocket is the descriptor of a helper's connection to the worker.
const HelperSocket = 3

// MaxHelpers is the maximum number of helpers in a container. The supervisor refuses a further one with
// resource_exhausted.
const MaxHelpers = 16

// HelperFiles is the number of descriptors with a [Help]: the helper's end of its connection.
const HelperFiles = 1

// Help starts a helper. It is refused with failed_precondition once the supervisor stops.
type Help struct {
	User  string `json:"user,omitempty"` // as in [Start]
	Cwd   string `json:"cwd,omitempty"`  // where relative paths begin; default: Welcome.DefaultCwd, or /
	Files int    `json:"files"`          // [HelperFiles]
}

// Limits of messages to and from a helper, in bytes.
const (
	MaxCall  = 4 << 20 // size of a [FileCall]: an edit has two texts of protocol.MaxFileEditText
	MaxReply = 1 << 20 // size of a [FileReply]
)

// FileCall is one operation, from the worker to a helper. Exactly one of the pointers is set. A helper carries out one
// operation after another, and ends when the connection ends. Closing the connection cancels the operation.
type FileCall struct {
	Read    *protocol.FileRead    `json:"read,omitempty"`
	Write   *protocol.FileWrite   `json:"write,omitempty"` // packets of data follow
	Stat    *protocol.FileStat    `json:"stat,omitempty"`
	List    *protocol.FileList    `json:"list,omitempty"`
	Mkdir   *protocol.FileMkdir   `json:"mkdir,omitempty"`
	Move    *protocol.FileMove    `json:"move,omitempty"`
	Copy    *protocol.FileCopy    `json:"copy,omitempty"`
	Remove  *protocol.FileRemove  `json:"remove,omitempty"`
	Glob    *protocol.FileGlob    `json:"glob,omitempty"`
	Grep    *protocol.FileGrep    `json:"grep,omitempty"`
	Edit    *protocol.FileEdit    `json:"edit,omitempty"`
	Changes *protocol.FileChanges `json:"changes,omitempty"`
	Watch   *protocol.FileWatch   `json:"watch,omitempty"` // replies with Events follow until the connection ends
	Pack    *protocol.FilePack    `json:"pack,omitempty"`
	Unpack  *protocol.FileUnpack  `json:"unpack,omitempty"` // packets of data follow
	Dial    *protocol.FileDial    `json:"dial,omitempty"`

	// Gives says that the worker sets owners when the helper asks for it with a [Give].
	Gives bool `json:"gives,omitempty"`
}

// Give asks the worker to set the owner of the file or directory whose descriptor comes with it. A helper without the
// capability CHOWN sends it in the middle of an operation that has an owner.
type Give struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`

	// Answer asks for a [Given]. Without it, the worker ends the operation if it cannot set the owner. The helper does
	// not ask for an answer while the worker sends it a stream.
	Answer bool `json:"answer,omitempty"`
}

// Given answers a [Give].
type Given struct {
	Error *protocol.Error `json:"error,omitempty"`
}

// FileReply ends an operation, except a Read with Stream, a Watch and a Give. It has an error, or what its operation
// returns.
type FileReply struct {
	Error   *protocol.Error       `json:"error,omitempty"`
	File    *protocol.FileInfo    `json:"file,omitempty"`
	Stats   *protocol.FileStats   `json:"stats,omitempty"`
	Page    *protocol.FilePage    `json:"page,omitempty"`
	Count   *protocol.FileCount   `json:"count,omitempty"`
	Matches *protocol.FileMatches `json:"matches,omitempty"`
	Edited  *protocol.FileEdited  `json:"edited,omitempty"`
	Events  *protocol.FileEvents  `json:"events,omitempty"`
	Give    *Give                 `json:"give,omitempty"`

	// Stream says that the bytes of a Read follow as packets of data, which another reply ends. Otherwise the reply has
	// the file's descriptor, or the descriptor of the connection for a Dial.
	Stream bool `json:"stream,omitempty"`
}

// readableThere are the file systems whose files a worker reads by itself: those whose reads end soon, and whose files
// have only bytes that were written to them. The files of others, such as /proc or a file system in user space, are
// read by the helper.
var readableThere = map[int64]bool{
	0xef53:     true, // ext2, ext3, ext4
	0x58465342: true, // xfs
	0x9123683e: true, // btrfs
	0x794c7630: true, // overlay
	0x01021994: true, // tmpfs
	0x858458f6: true, // ramfs
	0xf2f52010: true, // f2fs
	0x73717368: true, // squashfs
	0x2fc12fc1: true, // zfs
}

// ReadableThere reports whether a worker reads files of this type of file system by itself. See statfs(2).
func ReadableThere(fileSystem int64) bool { return readableThere[fileSystem] }
