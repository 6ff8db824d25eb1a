package sdk

import (
	"io/fs"

	"github.com/boxfleet/boxfleet/protocol"
)

// FilesOption is an option of [Sandbox.Files].
type FilesOption interface{ forFiles(*settings) }

// ReadFileOption is an option of [Files.Read] and [Files.ReadFile].
type ReadFileOption interface{ forReadFile(*settings) }

// WriteFileOption is an option of [Files.Write] and [Files.WriteFile].
type WriteFileOption interface{ forWriteFile(*settings) }

// StatOption is an option of [Files.Stat] and [Files.StatAll].
type StatOption interface{ forStat(*settings) }

// ListFilesOption is an option of [Files.List] and [Files.ListPage].
type ListFilesOption interface{ forListFiles(*settings) }

// GlobOption is an option of [Files.Glob] and [Files.GlobPage].
type GlobOption interface{ forGlob(*settings) }

// MkdirOption is an option of [Files.Mkdir].
type MkdirOption interface{ forMkdir(*settings) }

// MoveOption is an option of [Files.Move].
type MoveOption interface{ forMove(*settings) }

// CopyOption is an option of [Files.Copy].
type CopyOption interface{ forCopy(*settings) }

// RemoveOption is an option of [Files.Remove].
type RemoveOption interface{ forRemove(*settings) }

// GrepOption is an option of [Files.Grep].
type GrepOption interface{ forGrep(*settings) }

// EditOption is an option of [Files.Edit].
type EditOption interface{ forEdit(*settings) }

// ChangesOption is an option of [Files.Changes].
type ChangesOption interface{ forChanges(*settings) }

// WatchOption is an option of [Files.Watch].
type WatchOption interface{ forWatch(*settings) }

// PackOption is an option of [Files.Pack].
type PackOption interface{ forPack(*settings) }

// UnpackOption is an option of [Files.Unpack].
type UnpackOption interface{ forUnpack(*settings) }

// DownloadOption is an option of [Files.Download].
type DownloadOption interface{ forDownload(*settings) }

// UploadTreeOption is an option of [Files.Upload].
type UploadTreeOption interface{ forUploadTree(*settings) }

// FileModeOption is the type of [WithMode].
type FileModeOption interface {
	WriteFileOption
	MkdirOption
}

// ParentsOption is the type of [WithParents].
type ParentsOption interface {
	WriteFileOption
	MkdirOption
}

// HiddenOption is the type of [WithHidden].
type HiddenOption interface {
	ListFilesOption
	GlobOption
	GrepOption
}

// OverwriteOption is the type of [WithOverwrite].
type OverwriteOption interface {
	MoveOption
	CopyOption
	UnpackOption
	UploadTreeOption
}

// MaxBytesOption is the type of [WithMaxBytes].
type MaxBytesOption interface {
	GrepOption
	ReadFileOption
	PackOption
	DownloadOption
}

// CompressionOption is the type of [WithCompression].
type CompressionOption interface {
	PackOption
	UnpackOption
	DownloadOption
	UploadTreeOption
}

// RecursiveOption is the type of [WithRecursive].
type RecursiveOption interface {
	CopyOption
	RemoveOption
	WatchOption
}

func (o option) forFiles(s *settings)      { o(s) }
func (o option) forReadFile(s *settings)   { o(s) }
func (o option) forWriteFile(s *settings)  { o(s) }
func (o option) forStat(s *settings)       { o(s) }
func (o option) forListFiles(s *settings)  { o(s) }
func (o option) forGlob(s *settings)       { o(s) }
func (o option) forMkdir(s *settings)      { o(s) }
func (o option) forMove(s *settings)       { o(s) }
func (o option) forCopy(s *settings)       { o(s) }
func (o option) forRemove(s *settings)     { o(s) }
func (o option) forGrep(s *settings)       { o(s) }
func (o option) forEdit(s *settings)       { o(s) }
func (o option) forChanges(s *settings)    { o(s) }
func (o option) forWatch(s *settings)      { o(s) }
func (o option) forPack(s *settings)       { o(s) }
func (o option) forUnpack(s *settings)     { o(s) }
func (o option) forDownload(s *settings)   { o(s) }
func (o option) forUploadTree(s *settings) { o(s) }

// fileSettings holds the options that only calls on files have.
type fileSettings struct {
	offset, length                                   int64
	how                                              protocol.FileWriteMode
	mode                                             *uint32
	follow, hidden, all, ignoreCase                  bool
	parents, overwrite, recursive, missing, keepLink bool
	keepOwner                                        bool
	depth, limit, lineBytes                          int
	include                                          []string
	maxBytes                                         Bytes
	compress                                         *FileCompression // nil: not given
}

// WithRange reads length bytes from an offset. A length of 0 means everything from the offset on. Beyond the end of the
// file, nothing is read.
func WithRange(offset, length int64) ReadFileOption {
	return option(func(s *settings) { s.files.offset, s.files.length = offset, length })
}

// WithAppend writes at the end of the file, as the bytes arrive. If the write fails, a part of them may be in the file.
func WithAppend() WriteFileOption {
	return option(func(s *settings) { s.files.how = protocol.FileAppend })
}

// WithNew makes a write fail with already_exists if the file exists.
func WithNew() WriteFileOption {
	return option(func(s *settings) { s.files.how = protocol.FileCreate })
}

// WithMode sets the permission bits with setuid, setgid and sticky. The default of a file is the mode that it had, or
// 0644; that of a directory is 0755.
func WithMode(mode fs.FileMode) FileModeOption {
	return option(func(s *settings) { bits := unixMode(mode); s.files.mode = &bits })
}

// WithParents creates missing directories above, with mode 0755. [Files.Mkdir] then also accepts a directory that
// exists.
func WithParents() ParentsOption {
	return option(func(s *settings) { s.files.parents = true })
}

// WithKeptOwners gives each entry the owner that the tar stream names.
func WithKeptOwners() UnpackOption {
	return option(func(s *settings) { s.files.keepOwner = true })
}

// WithFollowedLinks describes what a symbolic link leads to, instead of the link.
func WithFollowedLinks() StatOption {
	return option(func(s *settings) { s.files.follow = true })
}

// WithDepth sets how many levels below the directory are listed. The default is 1; -1 means all.
func WithDepth(levels int) ListFilesOption {
	return option(func(s *settings) { s.files.depth = levels })
}

// WithHidden includes names that begin with a dot.
func WithHidden() HiddenOption {
	return option(func(s *settings) { s.files.hidden = true })
}

// WithOverwrite replaces files that exist. Without it, they are refused with already_exists.
func WithOverwrite() OverwriteOption {
	return option(func(s *settings) { s.files.overwrite = true })
}

// WithRecursive includes everything below a directory. Without it, [Files.Copy] refuses directories, and [Files.Remove]
// those that are not empty.
func WithRecursive() RecursiveOption {
	return option(func(s *settings) { s.files.recursive = true })
}

// WithMissing accepts that the path does not exist.
func WithMissing() RemoveOption {
	return option(func(s *settings) { s.files.missing = true })
}

// WithAll replaces each occurrence of the text. Without it, several occurrences are refused.
func WithAll() EditOption {
	return option(func(s *settings) { s.files.all = true })
}

// WithInclude searches only the files whose paths match one of the patterns, such as "**/*.go".
func WithInclude(patterns ...string) GrepOption {
	return option(func(s *settings) { s.files.include = append(s.files.include, patterns...) })
}

// WithIgnoreCase makes letters of either case match.
func WithIgnoreCase() GrepOption {
	return option(func(s *settings) { s.files.ignoreCase = true })
}

// WithMatchLimit ends the search after this many matches: 1 to 10,000. The default, also for 0, is 1000.
func WithMatchLimit(matches int) GrepOption {
	return option(func(s *settings) { s.files.limit = matches })
}

// WithLineBytes cuts the text of a match to this many bytes: 1 to 4096. The default, also for 0, is 512.
func WithLineBytes(bytes int) GrepOption {
	return option(func(s *settings) { s.files.lineBytes = bytes })
}

// WithMaxBytes limits how many bytes a call reads.
//
// [Files.Grep] then ends the search: at most 16 GiB are allowed, and the default, also for 0, is 1 GiB. The other calls
// fail with resource_exhausted and reason too_large; for 0 and by default they have no limit, except [Files.ReadFile]
// with [MaxReadFile]. [Files.Pack] and [Files.Download] of a directory count the tar stream, so that each file adds up
// to 1 KiB to its content. A call fails once the limit is exceeded; a [Files.Download] of a directory then leaves the
// complete files. A negative number is refused with invalid_argument naming "max_bytes".
func WithMaxBytes(bytes Bytes) MaxBytesOption {
	return option(func(s *settings) { s.files.maxBytes = bytes })
}

// WithCompression says when the tar stream of a directory is compressed between client and worker. The default,
// [protocol.CompressAuto], compresses while the link carries less than 40 MiB per second. An older worker cannot
// compress; then [protocol.CompressAlways] is refused with failed_precondition and reason unsupported. The tar streams
// that calls take and return are never compressed themselves.
func WithCompression(when FileCompression) CompressionOption {
	return option(func(s *settings) { s.files.compress = &when })
}

// WithKeptLinks also keeps symbolic links that lead out of the tree. By default [Files.Download] leaves them out,
// because the sandbox decides where they lead.
func WithKeptLinks() DownloadOption {
	return option(func(s *settings) { s.files.keepLink = true })
}

// unixMode returns the bits of a mode as the kernel has them.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for bit, unix := range map[fs.FileMode]uint32{
		fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			bits |= unix
		}
	}
	return bits
}

// WithUser works on files as this user of the container: a name or a uid, either with :group. The default is the user
// of the sandbox or the service.
func WithUser(user string) FilesOption {
	return option(func(s *settings) { s.user = user })
}
