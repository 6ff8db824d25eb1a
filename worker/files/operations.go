package files

import (
	"context"
	"io"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// Stat describes several paths. A path that cannot be described has its own error in the result.
func (s *Session) Stat(ctx context.Context, r protocol.FileStat) (*protocol.FileStats, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.simple(ctx, false, control.FileCall{Stat: &r})
	if err != nil {
		return nil, err
	}
	if reply.Stats == nil || len(reply.Stats.Files) != len(r.Paths) {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.Stats, nil
}

// List returns a page of the entries of a directory.
func (s *Session) List(ctx context.Context, r protocol.FileList) (*protocol.FilePage, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return s.page(ctx, control.FileCall{List: &r})
}

// Glob returns a page of the paths below a directory that match a pattern.
func (s *Session) Glob(ctx context.Context, r protocol.FileGlob) (*protocol.FilePage, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return s.page(ctx, control.FileCall{Glob: &r})
}

// Changes returns a page of what changed below a directory since an earlier call.
func (s *Session) Changes(ctx context.Context, r protocol.FileChanges) (*protocol.FilePage, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return s.page(ctx, control.FileCall{Changes: &r})
}

func (s *Session) page(ctx context.Context, c control.FileCall) (*protocol.FilePage, error) {
	reply, err := s.simple(ctx, false, c)
	if err != nil {
		return nil, err
	}
	if reply.Page == nil {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.Page, nil
}

// Grep finds lines in files.
func (s *Session) Grep(ctx context.Context, r protocol.FileGrep) (*protocol.FileMatches, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.simple(ctx, false, control.FileCall{Grep: &r})
	if err != nil {
		return nil, err
	}
	if reply.Matches == nil {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.Matches, nil
}

// Mkdir creates a directory, and returns its description.
func (s *Session) Mkdir(ctx context.Context, r protocol.FileMkdir) (*protocol.FileInfo, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return s.file(ctx, control.FileCall{Mkdir: &r})
}

// Move renames a file or a directory, and returns its description under the new name.
func (s *Session) Move(ctx context.Context, r protocol.FileMove) (*protocol.FileInfo, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return s.file(ctx, control.FileCall{Move: &r})
}

func (s *Session) file(ctx context.Context, c control.FileCall) (*protocol.FileInfo, error) {
	reply, err := s.simple(ctx, true, c)
	return fileOf(ctx, s, reply, err)
}

func fileOf(ctx context.Context, s *Session, reply *control.FileReply, err error) (*protocol.FileInfo, error) {
	if err != nil {
		return nil, err
	}
	if reply.File == nil {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.File, nil
}

// Copy copies a file or a directory. If it fails or is cancelled, a part of the copy may be left.
func (s *Session) Copy(ctx context.Context, r protocol.FileCopy) (*protocol.FileCount, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.simple(ctx, true, control.FileCall{Copy: &r})
	return countOf(ctx, s, reply, err)
}

// Remove removes a file or a directory. If it fails or is cancelled, a part of the directory may be left.
func (s *Session) Remove(ctx context.Context, r protocol.FileRemove) (*protocol.FileCount, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.simple(ctx, true, control.FileCall{Remove: &r})
	return countOf(ctx, s, reply, err)
}

func countOf(ctx context.Context, s *Session, reply *control.FileReply, err error) (*protocol.FileCount, error) {
	if err != nil {
		return nil, err
	}
	if reply.Count == nil {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.Count, nil
}

// Edit replaces a text in a file.
func (s *Session) Edit(ctx context.Context, r protocol.FileEdit) (*protocol.FileEdited, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.simple(ctx, true, control.FileCall{Edit: &r})
	if err != nil {
		return nil, err
	}
	if reply.Edited == nil {
		return nil, s.broken(ctx, errUnexpected)
	}
	return reply.Edited, nil
}

// Write writes a file from a stream, and returns the new file's description. If content returns an error, Write returns
// that error, and the file is as before, except with [protocol.FileAppend]. Write may have read more of content than it
// used. If content has a method SetReadDeadline, as connections have, a refusal ends a Read that waits.
func (s *Session) Write(ctx context.Context, r protocol.FileWrite, content io.Reader) (*protocol.FileInfo, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.upload(ctx, control.FileCall{Write: &r}, content)
	return fileOf(ctx, s, reply, err)
}

// Unpack writes a tar stream below a directory. If it fails or is cancelled, the entries that are already written stay.
func (s *Session) Unpack(ctx context.Context, r protocol.FileUnpack, tarball io.Reader) (*protocol.FileCount, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	reply, err := s.upload(ctx, control.FileCall{Unpack: &r}, tarball)
	return countOf(ctx, s, reply, err)
}
