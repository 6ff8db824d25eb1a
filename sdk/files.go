package sdk

import (
	"bytes"
	"context"
	"iter"
	"path"

	"github.com/boxfleet/boxfleet/protocol"
)

// Files works on the files in a container of a sandbox. It is safe for concurrent use, and holds no resources.
//
// The sandbox must be ready. A path is absolute, or begins at the working directory of the container; it has at most
// 4096 bytes. No path leads out of the container. Operations act as one user: see [WithUser].
//
// An operation that only reads is repeated if its answer was lost. Any other one is sent once: after unavailable or
// deadline_exceeded it is unknown whether it was carried out, and repeating it is up to the caller. The same holds if
// ctx ends first. Without a deadline, an operation that needs no stream gives up after 2 minutes.
//
// Errors of all operations, in addition to those that each one names:
//   - invalid_argument, naming the field
//   - failed_precondition with reason sandbox_not_ready; not_found; permission_denied for a role that may not use files
//   - failed_precondition with reason unsupported if an older worker started the container, or user_unknown
//   - not_found with reason path_not_found; permission_denied with reason path_denied; already_exists with reason
//     path_exists
//   - failed_precondition with reason is_directory, not_directory, not_regular, not_empty, link_loop, read_only,
//     file_busy or file_changed
//   - resource_exhausted with reason disk_full, too_large, start_failed or too_many_streams
//   - unavailable with reason no_worker, interrupted or stream_lost
type Files struct {
	sandbox       *Sandbox
	service, user string
}

// The types of operations on files.
type (
	// FileInfo describes a file.
	FileInfo = protocol.FileInfo
	// FileType says what a path names, such as [protocol.FileDirectory].
	FileType = protocol.FileType
	// FileResult is the description of one of several paths, or the error for that path.
	FileResult = protocol.FileResult
	// FileCompression says when the tar stream of a directory is compressed, such as [protocol.CompressAlways].
	FileCompression = protocol.FileCompression
	// FileCount counts the entries and bytes that an operation on a tree has copied, and lists what it left out.
	FileCount = protocol.FileCount
	// FileSkip is a path that an operation left out, and why.
	FileSkip = protocol.FileSkip
	// FileMatch is a line that matches.
	FileMatch = protocol.FileMatch
	// FileMatches are the lines that match.
	FileMatches = protocol.FileMatches
	// FileEdited says what an edit did.
	FileEdited = protocol.FileEdited
	// FileEvent is a change that [Files.Watch] reports.
	FileEvent = protocol.FileEvent
)

// FilePage is a page of files. It also says which files were left out.
type FilePage struct {
	Page[*FileInfo]
	Token   string     // only from [Files.Changes]; asks for later changes
	Skipped []FileSkip // the first 100 paths that were left out
	Skips   int64      // number of paths that were left out
}

// Files gives access to the files of the sandbox. Options: [WithService], [WithUser].
func (s *Sandbox) Files(opts ...FilesOption) *Files {
	o := settingsOf(opts, FilesOption.forFiles)
	return &Files{sandbox: s, service: o.service, user: o.user}
}

// Stat describes a path. For a symbolic link, it describes the link, unless [WithFollowedLinks] is given.
func (f *Files) Stat(ctx context.Context, path string, opts ...StatOption) (*FileInfo, error) {
	if err := protocol.ValidateFilePath("path", path); err != nil {
		return nil, err
	}
	all, err := f.StatAll(ctx, []string{path}, opts...)
	switch {
	case err != nil:
		return nil, err
	case all[0].Error != nil:
		return nil, all[0].Error
	}
	return all[0].File, nil
}

// StatAll describes 1 to 256 paths with one request, in their order. A path that cannot be described has its own error.
// Option: [WithFollowedLinks].
func (f *Files) StatAll(ctx context.Context, paths []string, opts ...StatOption) ([]FileResult, error) {
	o := settingsOf(opts, StatOption.forStat)
	r := protocol.FileRequest{Stat: &protocol.FileStat{Paths: paths, Follow: o.files.follow}}
	answer, err := f.ask(ctx, r, "describe files", func(a *protocol.FileAnswer) bool {
		return a.Stats != nil && len(a.Stats.Files) == len(paths)
	})
	if err != nil {
		return nil, err
	}
	for _, one := range answer.Stats.Files {
		if (one.File == nil) == (one.Error == nil) {
			return nil, errNoAnswer
		}
	}
	return answer.Stats.Files, nil
}

// List reads the entries of a directory, sorted by the bytes of their names; a directory comes before its content.
// Paths are relative to the directory. List fetches each page when the caller's loop needs it. The sequence ends after
// the first error. Entries that cannot be read are left out; [Files.ListPage] names them.
//
// Options: [WithDepth], [WithHidden], [WithPageSize], [WithPage].
func (f *Files) List(ctx context.Context, path string, opts ...ListFilesOption) iter.Seq2[*FileInfo, error] {
	s := settingsOf(opts, ListFilesOption.forListFiles)
	return filePages(s.page, func(page string) (*FilePage, error) { return f.listPage(ctx, path, s, page) })
}

// ListPage reads one page of a list. Options and errors are the same as for [Files.List].
func (f *Files) ListPage(ctx context.Context, path string, opts ...ListFilesOption) (*FilePage, error) {
	s := settingsOf(opts, ListFilesOption.forListFiles)
	return f.listPage(ctx, path, s, s.page)
}

func (f *Files) listPage(ctx context.Context, path string, s *settings, page string) (*FilePage, error) {
	return f.page(ctx, protocol.FileRequest{List: &protocol.FileList{
		Path: path, Depth: s.files.depth, Hidden: s.files.hidden, Limit: s.pageSize, Page: page}}, "list "+path)
}

// Glob reads the paths below a directory that match a pattern, such as "src/**/*.go". In a pattern, * and ? match
// within a name, ** matches any number of directories, and {a,b} either text. Links are not followed. The sequence is
// like that of [Files.List].
//
// Options: [WithExclude], [WithHidden], [WithPageSize], [WithPage].
func (f *Files) Glob(ctx context.Context, path, pattern string, opts ...GlobOption) iter.Seq2[*FileInfo, error] {
	s := settingsOf(opts, GlobOption.forGlob)
	return filePages(s.page, func(page string) (*FilePage, error) { return f.globPage(ctx, path, pattern, s, page) })
}

// GlobPage reads one page of matches. Options and errors are the same as for [Files.Glob].
func (f *Files) GlobPage(ctx context.Context, path, pattern string, opts ...GlobOption) (*FilePage, error) {
	s := settingsOf(opts, GlobOption.forGlob)
	return f.globPage(ctx, path, pattern, s, s.page)
}

func (f *Files) globPage(ctx context.Context, path, pattern string, s *settings, page string) (*FilePage, error) {
	excludes, err := globsOf(s.exclude)
	if err != nil {
		return nil, err
	}
	return f.page(ctx, protocol.FileRequest{Glob: &protocol.FileGlob{Path: path, Pattern: pattern, Excludes: excludes,
		Hidden: s.files.hidden, Limit: s.pageSize, Page: page}}, "search "+path)
}

// Changes reads one page of what has changed below a directory since an earlier call. since is the field Token of an
// earlier page; with an empty one, Changes only returns a token. If the page has a Next, the call with the same since
// and [WithPage] returns the next page; the token of the first page covers all of them. A removal shows as a change of
// its directory. A change may be listed twice, but none is left out unless the clock of the sandbox was set back.
//
// Options: [WithPageSize], [WithPage].
func (f *Files) Changes(ctx context.Context, path, since string, opts ...ChangesOption) (*FilePage, error) {
	s := settingsOf(opts, ChangesOption.forChanges)
	return f.page(ctx, protocol.FileRequest{Changes: &protocol.FileChanges{
		Path: path, Since: since, Limit: s.pageSize, Page: s.page}}, "look for changes in "+path)
}

// Grep finds the lines that match a regular expression of Go (RE2), in a file or below a directory. Binary files are
// left out. If Stopped is set in the result, a limit has ended the search.
//
// Options: [WithInclude], [WithExclude], [WithHidden], [WithIgnoreCase], [WithMatchLimit], [WithLineBytes],
// [WithMaxBytes].
func (f *Files) Grep(ctx context.Context, path, expression string, opts ...GrepOption) (*FileMatches, error) {
	s := settingsOf(opts, GrepOption.forGrep)
	excludes, err := globsOf(s.exclude)
	if err != nil {
		return nil, err
	}
	answer, err := f.ask(ctx, protocol.FileRequest{Grep: &protocol.FileGrep{Path: path, Expression: expression,
		Include: s.files.include, Excludes: excludes, IgnoreCase: s.files.ignoreCase, Hidden: s.files.hidden,
		Limit: s.files.limit, LineBytes: s.files.lineBytes, MaxBytes: s.files.maxBytes}}, "search "+path,
		func(a *protocol.FileAnswer) bool { return a.Matches != nil })
	if err != nil {
		return nil, err
	}
	return answer.Matches, nil
}

// Edit replaces a text in a file of at most 16 MiB. Readers see the old file or the new one, never a mixture. The texts
// have at most 1 MiB, and old must match exactly. Option: [WithAll]. Errors: failed_precondition with reason no_match,
// or several_matches without WithAll.
func (f *Files) Edit(ctx context.Context, path string, old, replacement []byte, opts ...EditOption) (
	*FileEdited, error) {
	s := settingsOf(opts, EditOption.forEdit)
	answer, err := f.ask(ctx, protocol.FileRequest{Edit: &protocol.FileEdit{
		Path: path, Old: old, New: replacement, All: s.files.all}}, "edit "+path,
		func(a *protocol.FileAnswer) bool { return a.Edited != nil })
	if err != nil {
		return nil, err
	}
	return answer.Edited, nil
}

// Mkdir creates a directory. Options: [WithParents], [WithMode], [WithOwner].
func (f *Files) Mkdir(ctx context.Context, path string, opts ...MkdirOption) (*FileInfo, error) {
	s := settingsOf(opts, MkdirOption.forMkdir)
	return f.file(ctx, protocol.FileRequest{Mkdir: &protocol.FileMkdir{
		Path: path, Parents: s.files.parents, Mode: s.files.mode, Owner: s.owner}}, "create directory "+path)
}

// Move renames a file or a directory. to is the new path, not a directory to move into. Option: [WithOverwrite], which
// replaces a file or an empty directory.
func (f *Files) Move(ctx context.Context, from, to string, opts ...MoveOption) (*FileInfo, error) {
	s := settingsOf(opts, MoveOption.forMove)
	return f.file(ctx, protocol.FileRequest{Move: &protocol.FileMove{
		From: from, To: to, Overwrite: s.files.overwrite}}, "move "+from)
}

// Copy copies a file, or a directory with its content. to is the path of the copy, not a directory to copy into. Links
// are copied as links. If Copy fails, a part of the copy may be left. Options: [WithRecursive], [WithOverwrite].
func (f *Files) Copy(ctx context.Context, from, to string, opts ...CopyOption) (*FileCount, error) {
	s := settingsOf(opts, CopyOption.forCopy)
	return f.count(ctx, protocol.FileRequest{Copy: &protocol.FileCopy{
		From: from, To: to, Recursive: s.files.recursive, Overwrite: s.files.overwrite}}, "copy "+from)
}

// Remove removes a file or an empty directory. If a removal with [WithRecursive] fails, a part of the directory may be
// left. Options: [WithRecursive], [WithMissing].
func (f *Files) Remove(ctx context.Context, path string, opts ...RemoveOption) (*FileCount, error) {
	s := settingsOf(opts, RemoveOption.forRemove)
	return f.count(ctx, protocol.FileRequest{Remove: &protocol.FileRemove{
		Path: path, Recursive: s.files.recursive, Missing: s.files.missing}}, "remove "+path)
}

func (f *Files) page(ctx context.Context, r protocol.FileRequest, doing string) (*FilePage, error) {
	answer, err := f.ask(ctx, r, doing, func(a *protocol.FileAnswer) bool { return a.Page != nil })
	if err != nil {
		return nil, err
	}
	p := answer.Page
	found := &FilePage{Token: p.Token, Skipped: p.Skipped, Skips: p.Skips}
	found.Next, found.Items = p.Next, make([]*FileInfo, len(p.Files))
	for i := range p.Files {
		found.Items[i] = &p.Files[i]
	}
	return found, nil
}

func (f *Files) file(ctx context.Context, r protocol.FileRequest, doing string) (*FileInfo, error) {
	answer, err := f.ask(ctx, r, doing, func(a *protocol.FileAnswer) bool { return a.File != nil })
	if err != nil {
		return nil, err
	}
	return answer.File, nil
}

func (f *Files) count(ctx context.Context, r protocol.FileRequest, doing string) (*FileCount, error) {
	answer, err := f.ask(ctx, r, doing, func(a *protocol.FileAnswer) bool { return a.Count != nil })
	if err != nil {
		return nil, err
	}
	return answer.Count, nil
}

// filePages reads a list of files page by page.
func filePages(start string, read func(token string) (*FilePage, error)) iter.Seq2[*FileInfo, error] {
	return pages(start, func(token string) (*Page[*FileInfo], error) {
		p, err := read(token)
		if err != nil {
			return nil, err
		}
		return &p.Page, nil
	})
}

// globsOf translates patterns of [CheckExclude] into those of a worker, which leaves out what any of them matches.
func globsOf(patterns []string) ([]string, error) {
	parsed, err := parseExclude(patterns)
	if err != nil {
		return nil, err
	}
	var globs []string
	for _, p := range parsed {
		if p.include || p.dirs {
			return nil, protocol.Invalid("exclude", "must not begin with ! or end with / in this call, got %.80q",
				path.Join(p.glob...))
		}
		globs = append(globs, path.Join(p.glob...))
	}
	return globs, nil
}

// fitsInline reports whether content is short enough to travel with a request.
func fitsInline(content []byte) bool { return len(content) <= protocol.MaxFileInline/2 }

// WriteFile writes a whole file. Until all bytes have arrived, readers see the old file. Options: [WithMode],
// [WithOwner], [WithParents], [WithAppend], [WithNew]. It returns a description of the new file.
func (f *Files) WriteFile(ctx context.Context, path string, content []byte, opts ...WriteFileOption) (
	*FileInfo, error) {
	r := writeRequest(path, opts)
	if !fitsInline(content) {
		return f.write(ctx, r, bytes.NewReader(content), nil)
	}
	r.Content, r.Whole = content, true
	return f.file(ctx, r, "write "+path)
}

func writeRequest(path string, opts []WriteFileOption) protocol.FileRequest {
	s := settingsOf(opts, WriteFileOption.forWriteFile)
	return protocol.FileRequest{Write: &protocol.FileWrite{
		Path: path, How: s.files.how, Mode: s.files.mode, Owner: s.owner, Parents: s.files.parents}}
}
