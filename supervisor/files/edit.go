package files

import (
	"bytes"
	"io"

	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// edit replaces a text in a file.
func (h *helper) edit(r *protocol.FileEdit) (*control.FileReply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	at, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	t, err := h.openTarget(at, r.Path)
	if err != nil {
		return nil, err
	}
	defer t.close()
	if !t.exists {
		return nil, failure(r.Path, unix.ENOENT)
	}
	before, stat, err := t.content()
	if err != nil {
		return nil, failure(r.Path, err)
	}
	count := bytes.Count(before, r.Old)
	switch {
	case count == 0:
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNoMatch,
			"%.200q does not have the text to replace", r.Path)
	case count > 1 && !r.All:
		return nil, protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonSeveralMatches,
			"the text to replace occurs %d times in %.200q; give more of the text around it, or replace all occurrences",
			count, r.Path)
	case len(before)+count*(len(r.New)-len(r.Old)) > protocol.MaxFileEdit:
		return nil, tooLarge("%.200q would have more than %d bytes", r.Path, protocol.MaxFileEdit)
	}
	after := bytes.ReplaceAll(before, r.Old, r.New)
	if err := t.unchanged(&stat); err != nil {
		return nil, err
	}
	if err := t.replace(bytes.NewReader(after), nil, ""); err != nil {
		return nil, failure(r.Path, err)
	}
	info, err := t.info(r.Path)
	if err != nil {
		return nil, err
	}
	return &control.FileReply{Edited: &protocol.FileEdited{Replaced: count, File: *info}}, nil
}

// content reads a small file.
func (t *target) content() ([]byte, unix.Stat_t, error) {
	file, stat, err := openChecked(t.dir, t.name, t.asked, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, stat, err
	}
	defer file.Close()
	if stat.Size > protocol.MaxFileEdit {
		return nil, stat, tooLarge("%.200q has %d bytes; a file of at most %d can be edited", t.asked, stat.Size,
			protocol.MaxFileEdit)
	}
	data, err := io.ReadAll(io.LimitReader(file, protocol.MaxFileEdit+1))
	if err == nil && len(data) > protocol.MaxFileEdit {
		err = tooLarge("%.200q grew to more than %d bytes", t.asked, protocol.MaxFileEdit)
	}
	return data, stat, err
}

// unchanged returns an error if the target was replaced or written since it was read. A change after this check is
// lost, as with any editor.
func (t *target) unchanged(read *unix.Stat_t) error {
	var now unix.Stat_t
	if err := unix.Fstatat(t.dir, t.name, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failure(t.asked, err)
	}
	if now.Ino != read.Ino || now.Dev != read.Dev || now.Size != read.Size || now.Ctim != read.Ctim {
		return protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonFileChanged,
			"%.200q was changed by another process meanwhile; edit it again", t.asked)
	}
	return nil
}
