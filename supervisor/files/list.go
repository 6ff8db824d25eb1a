package files

import (
	"cmp"
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/supervisor/control"
)

// pager collects one page of files.
type pager struct {
	walk
	limit int
	known *names
	page  protocol.FilePage
	size  int
	skips skips
	last  string // path of the last entry that was visited
	full  bool
}

func newPager(ctx context.Context, limit int, page string) (*pager, error) {
	p := &pager{limit: cmp.Or(limit, protocol.DefaultFilePage), known: readNames()}
	p.page.Files = []protocol.FileInfo{}
	after, err := base64.RawURLEncoding.DecodeString(page)
	if err != nil {
		return nil, protocol.Invalid("page", "is not a page token from an earlier answer")
	}
	p.walk = walk{ctx: ctx, depth: -1, after: string(after)}
	p.skipped = p.skips.add
	return p, nil
}

// add adds an entry to the page. It ends the walk when the page is full.
func (p *pager) add(e *entry) error {
	info := p.known.info(e.rel, &e.stat)
	if info.Type == protocol.FileLink {
		info.Target = readLink(e.dir, e.name)
	}
	size := infoSize + len(info.Path) + len(info.Target)
	if len(p.page.Files) > 0 && (len(p.page.Files) >= p.limit || p.size+size > protocol.MaxFileResult-skipBytes) {
		p.full = true
		return errStop
	}
	p.size += size
	p.page.Files = append(p.page.Files, info)
	p.last = e.rel
	return nil
}

// result returns the page.
func (p *pager) result() *control.FileReply {
	p.page.Skipped, p.page.Skips = p.skips.kept, p.skips.count
	if p.full {
		p.page.Next = base64.RawURLEncoding.EncodeToString([]byte(p.last))
	}
	return &control.FileReply{Page: &p.page}
}

// list returns a page of a directory.
func (h *helper) list(ctx context.Context, r *protocol.FileList) (*control.FileReply, error) {
	path, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	p, err := newPager(ctx, r.Limit, r.Page)
	if err != nil {
		return nil, err
	}
	p.hidden, p.depth, p.visit = r.Hidden, cmp.Or(r.Depth, 1), p.add
	if err := p.below(path); err != nil {
		return nil, err
	}
	return p.result(), nil
}

// glob returns a page of the paths that match a pattern.
func (h *helper) glob(ctx context.Context, r *protocol.FileGlob) (*control.FileReply, error) {
	path, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	if err := checkPatterns("pattern", r.Pattern); err != nil {
		return nil, err
	}
	if err := checkPatterns("excludes", r.Excludes...); err != nil {
		return nil, err
	}
	p, err := newPager(ctx, r.Limit, r.Page)
	if err != nil {
		return nil, err
	}
	p.hidden, p.excludes = r.Hidden, r.Excludes
	if !strings.Contains(r.Pattern, "**") && !strings.Contains(r.Pattern, "{") {
		p.depth = strings.Count(r.Pattern, "/") + 1
	}
	base, _ := doublestar.SplitPattern(r.Pattern)
	p.descend = func(e *entry) bool {
		return base == "." || base == e.rel || strings.HasPrefix(e.rel, base+"/") || strings.HasPrefix(base, e.rel+"/")
	}
	p.visit = func(e *entry) error {
		if !doublestar.MatchUnvalidated(r.Pattern, e.rel) {
			return nil
		}
		return p.add(e)
	}
	if err := p.below(path); err != nil {
		return nil, err
	}
	return p.result(), nil
}

// changes returns a page of what changed since a token. The token is the time at which an earlier call began, by the
// clock with which the kernel stamps changes. A change in the same tick of that clock is listed again.
func (h *helper) changes(ctx context.Context, r *protocol.FileChanges) (*control.FileReply, error) {
	path, err := h.path("path", r.Path)
	if err != nil {
		return nil, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return nil, failure(r.Path, err)
	}
	token := strconv.FormatInt(now.Nano(), 10)
	after := r.Page
	if r.Page != "" { // all pages have the token of the first one
		var found bool
		if token, after, found = strings.Cut(r.Page, "."); !found {
			return nil, protocol.Invalid("page", "is not a page token from an earlier answer")
		}
	}
	p, err := newPager(ctx, r.Limit, after)
	if err != nil {
		return nil, err
	}
	p.page.Token = token
	since, err := strconv.ParseInt(cmp.Or(r.Since, token), 10, 64)
	if err != nil {
		return nil, protocol.Invalid("since", "is not a token from an earlier answer")
	}
	if r.Since == "" {
		stat := unix.Stat_t{}
		if err := unix.Stat(path, &stat); err != nil {
			return nil, failure(r.Path, err)
		}
		if typeOf(stat.Mode) != protocol.FileDirectory {
			return nil, failure(r.Path, unix.ENOTDIR)
		}
		return p.result(), nil
	}
	p.hidden = true
	p.visit = func(e *entry) error {
		if e.stat.Ctim.Nano() < since {
			return nil
		}
		return p.add(e)
	}
	if err := p.changedSelf(path, since, r.Page == ""); err != nil {
		return nil, err
	}
	if err := p.below(path); err != nil {
		return nil, err
	}
	reply := p.result()
	if reply.Page.Next != "" {
		reply.Page.Next = token + "." + reply.Page.Next
	}
	return reply, nil
}

// changedSelf adds the directory itself to the first page, as ".", if it changed. Only this change shows that an entry
// was removed.
func (p *pager) changedSelf(path string, since int64, first bool) error {
	e := &entry{rel: "."}
	if err := unix.Stat(path, &e.stat); err != nil {
		return failure(path, err)
	}
	if !first || e.stat.Ctim.Nano() < since {
		return nil
	}
	return p.add(e)
}
