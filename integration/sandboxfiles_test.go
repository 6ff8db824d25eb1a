package integration

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// boxed are the files of one sandbox.
type boxed struct {
	*sdk.Files
	box *sdk.Sandbox
	f   *fleet.Fleet
}

// filesOf creates a sandbox for a test of its files.
func filesOf(ctx context.Context, t *testing.T, f *fleet.Fleet, id string, change func(*protocol.SandboxSpec)) boxed {
	t.Helper()
	spec := f.Spec()
	if change != nil {
		change(&spec)
	}
	box, err := f.Client.Create(ctx, spec, sdk.WithID(id))
	if err != nil {
		t.Fatal(err)
	}
	return boxed{box.Files(), box, f}
}

// sh runs a command in the sandbox, and returns what it prints.
func (b boxed) sh(ctx context.Context, t *testing.T, script string) string {
	t.Helper()
	result, err := b.box.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	if result.ExitCode == nil || *result.ExitCode != 0 {
		t.Fatalf("%s: exit code %v, %s%s", script, result.ExitCode, result.Stdout, result.Stderr)
	}
	return string(result.Stdout)
}

// put writes a file.
func (b boxed) put(ctx context.Context, t *testing.T, path, content string) {
	t.Helper()
	if _, err := b.WriteFile(ctx, path, []byte(content), sdk.WithParents()); err != nil {
		t.Fatal(err)
	}
}

func (b boxed) want(ctx context.Context, t *testing.T, path, content string) {
	t.Helper()
	if got, err := b.ReadFile(ctx, path); err != nil || string(got) != content {
		t.Errorf("%s has %.200q, %v; want %.200q", path, got, err, content)
	}
}

func TestFilesOfASandbox(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(5 * time.Minute)
	b := filesOf(ctx, t, f, "files", nil)
	f.Run(t, "read and write", func(t *testing.T) { b.readAndWrite(ctx, t) })
	f.Run(t, "stat", func(t *testing.T) { b.stat(ctx, t) })
	f.Run(t, "lists", func(t *testing.T) { b.lists(ctx, t) })
	f.Run(t, "directories, moves, copies and removals", func(t *testing.T) { b.changeTrees(ctx, t) })
	f.Run(t, "search and edit", func(t *testing.T) { b.search(ctx, t) })
	f.Run(t, "changes", func(t *testing.T) { b.changes(ctx, t) })
	f.Run(t, "watch", func(t *testing.T) { b.watches(ctx, t) })
	f.Run(t, "errors", func(t *testing.T) { b.fails(ctx, t) })
	f.Run(t, "long requests and answers", func(t *testing.T) { b.long(ctx, t) })
	f.Run(t, "a source that fails leaves the file", func(t *testing.T) { b.failingSource(ctx, t) })
	f.Run(t, "a refusal does not wait for the source", func(t *testing.T) { b.refused(ctx, t) })
	f.Run(t, "more than the caller accepts", func(t *testing.T) { b.tooMuch(ctx, t) })
	f.Run(t, "tar streams", func(t *testing.T) { b.tars(ctx, t) })
	f.Run(t, "compressed trees", func(t *testing.T) { b.compressed(ctx, t) })
	f.Run(t, "a hundred operations at once", func(t *testing.T) { b.hundred(ctx, t) })
	f.Run(t, "many users", func(t *testing.T) { b.manyUsers(ctx, t) })
	f.Run(t, "the history", func(t *testing.T) { b.history(ctx, t) })
	f.Run(t, "latency", func(t *testing.T) { b.latency(ctx, t) })
}

func (b boxed) readAndWrite(ctx context.Context, t *testing.T) {
	for _, size := range []int{0, 1, protocol.MaxFileInline - 1, protocol.MaxFileInline, protocol.MaxFileInline + 1,
		300_000} {
		content := strings.Repeat("0123456789", size/10+1)[:size]
		info, err := b.WriteFile(ctx, "/tmp/rw/file", []byte(content), sdk.WithParents(), sdk.WithMode(0o640))
		if err != nil || info.Size != int64(size) || info.Mode != 0o640 {
			t.Fatalf("write %d bytes: %+v, %v", size, info, err)
		}
		b.want(ctx, t, "/tmp/rw/file", content)
		if _, err = b.Write(ctx, "/tmp/rw/stream", iotest.HalfReader(strings.NewReader(content))); err != nil {
			t.Fatal(err)
		}
		b.want(ctx, t, "/tmp/rw/stream", content)
	}
	b.put(ctx, t, "/tmp/rw/range", "0123456789")
	part, err := b.ReadFile(ctx, "/tmp/rw/range", sdk.WithRange(3, 4))
	if err != nil || string(part) != "3456" {
		t.Errorf("a range: %q, %v", part, err)
	}
	if _, err := b.WriteFile(ctx, "/tmp/rw/range", []byte("ab"), sdk.WithAppend()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Write(ctx, "/tmp/rw/range", strings.NewReader("c"), sdk.WithAppend()); err != nil {
		t.Fatal(err)
	}
	b.want(ctx, t, "/tmp/rw/range", "0123456789abc")
	_, err = b.WriteFile(ctx, "/tmp/rw/range", nil, sdk.WithNew())
	wantReason(t, err, protocol.AlreadyExists, protocol.ReasonPathExists)
	if got := b.sh(ctx, t, "cat /tmp/rw/range; stat -c %a /tmp/rw/file"); got != "0123456789abc640\n" {
		t.Errorf("the sandbox sees %q", got)
	}
	b.want(ctx, t, "/proc/self/comm", "exe\n") // read by the helper, as the size of such files is not known
}

func (b boxed) stat(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/st && cd /tmp/st && "+
		"echo x > file && ln -s file link && ln -s nowhere broken && mkfifo fifo")
	all, err := b.StatAll(ctx, []string{"/tmp/st", "/tmp/st/file", "/tmp/st/link", "/tmp/st/fifo", "/tmp/st/none"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		if r.Error != nil {
			got = append(got, r.Error.Reason)
		} else {
			got = append(got, string(r.File.Type))
		}
	}
	if want := []string{"directory", "file", "link", "fifo", protocol.ReasonPathNotFound}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	link, err := b.Stat(ctx, "/tmp/st/link", sdk.WithFollowedLinks())
	if err != nil || link.Type != protocol.FileRegular || link.Size != 2 || time.Since(link.Modified) > time.Hour {
		t.Errorf("a followed link: %+v, %v", link, err)
	}
	link, err = b.Stat(ctx, "/tmp/st/link")
	if err != nil || link.Target != "file" || link.LinkGone {
		t.Errorf("a link: %+v, %v", link, err)
	}
	broken, err := b.Stat(ctx, "/tmp/st/broken", sdk.WithFollowedLinks())
	if err != nil || broken.Type != protocol.FileLink || broken.Target != "nowhere" || !broken.LinkGone {
		t.Errorf("a broken link that is followed: %+v, %v", broken, err)
	}
	b.sh(ctx, t, "touch -a -d @1000000000 /tmp/st/file && touch -m -d @1100000000 /tmp/st/file")
	file, err := b.Stat(ctx, "/tmp/st/file")
	want := b.sh(ctx, t, "cd /tmp/st && stat -c '%u %g %U %G %X %Y %Z' file")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%d %d %s %s %d %d %d\n", file.UID, file.GID, file.Owner, file.Group, file.Accessed.Unix(),
		file.Modified.Unix(), file.Changed.Unix()); got != want || file.Modified.Unix() != 1100000000 {
		t.Errorf("the owner and the times are %q, want %q", got, want)
	}
}

func (b boxed) lists(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/ls/d/e && cd /tmp/ls && "+
		"for i in $(seq 25); do echo > f$i; done; echo > .hidden; echo > d/e/deep")
	count := func(opts ...sdk.ListFilesOption) int {
		all, err := sdk.ReadAll(b.List(ctx, "/tmp/ls", opts...))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for want, opts := range map[int][]sdk.ListFilesOption{
		26: {sdk.WithPageSize(4)}, 27: {sdk.WithHidden()}, 29: {sdk.WithHidden(), sdk.WithDepth(-1), sdk.WithPageSize(3)},
	} {
		if got := count(opts...); got != want {
			t.Errorf("%d entries are listed, want %d", got, want)
		}
	}
	page, err := b.ListPage(ctx, "/tmp/ls", sdk.WithPageSize(10))
	if err != nil || len(page.Items) != 10 || page.Next == "" || page.Items[0].Path != "d" {
		t.Fatalf("a page: %+v, %v", page, err)
	}
	second, err := b.ListPage(ctx, "/tmp/ls", sdk.WithPageSize(10), sdk.WithPage(page.Next))
	if err != nil || len(second.Items) != 10 || second.Items[0].Path <= page.Items[9].Path {
		t.Errorf("the second page: %+v, %v", second, err)
	}
}

func (b boxed) search(ctx context.Context, t *testing.T) {
	b.put(ctx, t, "/tmp/se/src/main.go", "package main\n\nfunc main() {}\n")
	b.put(ctx, t, "/tmp/se/src/vendor/x.go", "package x\n")
	b.put(ctx, t, "/tmp/se/note.txt", "Package of notes\n")
	var paths []string
	for info, err := range b.Glob(ctx, "/tmp/se", "**/*.go", sdk.WithExclude("vendor")) {
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, info.Path)
	}
	if !slices.Equal(paths, []string{"src/main.go"}) {
		t.Errorf("glob finds %q", paths)
	}
	found, err := b.Grep(ctx, "/tmp/se", "^package", sdk.WithIgnoreCase(), sdk.WithExclude("vendor"))
	if err != nil || len(found.Matches) != 2 || found.Matches[0].Path != "note.txt" || found.Matches[1].Line != 1 {
		t.Errorf("grep: %+v, %v", found, err)
	}
	_, err = b.Grep(ctx, "/tmp/se", "(")
	wantReason(t, err, protocol.InvalidArgument, "")
	_, err = sdk.ReadAll(b.Glob(ctx, "/tmp/se", "*", sdk.WithExclude("!x")))
	if e := protocol.AsError(err); e.Code != protocol.InvalidArgument || e.Field != "exclude" {
		t.Errorf("an exclude that includes: %v", err)
	}
	edited, err := b.Edit(ctx, "/tmp/se/src/main.go", []byte("main() {}"), []byte("main() { run() }"))
	if err != nil || edited.Replaced != 1 {
		t.Errorf("edit: %+v, %v", edited, err)
	}
	_, err = b.Edit(ctx, "/tmp/se/src/main.go", []byte("main"), []byte("x"))
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonSeveralMatches)
	_, err = b.Edit(ctx, "/tmp/se/src/main.go", []byte("absent"), []byte("x"))
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonNoMatch)
	if edited, err = b.Edit(ctx, "/tmp/se/src/main.go", []byte("main"), []byte("x"), sdk.WithAll()); err != nil ||
		edited.Replaced != 2 {
		t.Errorf("edit all: %+v, %v", edited, err)
	}
	b.want(ctx, t, "/tmp/se/src/main.go", "package x\n\nfunc x() { run() }\n")
}

func (b boxed) changes(ctx context.Context, t *testing.T) {
	b.put(ctx, t, "/tmp/ch/old", "1")
	first, err := b.Changes(ctx, "/tmp/ch", "")
	if err != nil || first.Token == "" || len(first.Items) > 0 {
		t.Fatalf("the first token: %+v, %v", first, err)
	}
	b.put(ctx, t, "/tmp/ch/new", "2")
	later, err := b.Changes(ctx, "/tmp/ch", first.Token)
	if err != nil || !slices.ContainsFunc(later.Items, func(i *sdk.FileInfo) bool { return i.Path == "new" }) {
		t.Errorf("the changes: %+v, %v", later, err)
	}
}

func (b boxed) watches(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/wa/d")
	var kinds []string
	for e, err := range b.Watch(ctx, "/tmp/wa", sdk.WithRecursive()) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, string(e.Kind)+" "+e.Path)
		if e.Kind == protocol.FileWatching {
			b.sh(ctx, t, "echo > /tmp/wa/d/x; rm /tmp/wa/d/x")
		}
		if e.Kind == protocol.FileRemoved {
			break
		}
	}
	if got := strings.Join(kinds, ","); !strings.HasPrefix(got, "watching ,created d/x") ||
		!strings.HasSuffix(got, "removed d/x") {
		t.Errorf("the events are %q", got)
	}
	// Watches that have ended make room for others; too many at a time are refused.
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	started := make(chan struct{}, 10)
	for range 4 {
		group.Go(func() error {
			for e, err := range b.Watch(watching, "/tmp/wa") {
				if err != nil && watching.Err() == nil {
					return err
				}
				if e.Kind == protocol.FileWatching {
					started <- struct{}{}
				}
			}
			return nil
		})
	}
	b.f.Eventually(20*time.Second, "four watches have begun", func() error {
		if n := len(started); n < 4 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	for _, err := range b.Watch(ctx, "/tmp/wa") {
		if wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooManyStreams); err == nil {
			break
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func (b boxed) fails(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/er/d && cd /tmp/er && mkfifo fifo && echo > f && ln -s loop loop && "+
		"ln -s /dev/zero dev && mkdir secret && chmod 0 secret")
	read := func(path string) error { _, err := b.ReadFile(ctx, path); return err }
	write := func(path string) error { _, err := b.WriteFile(ctx, path, []byte("x")); return err }
	for _, c := range []struct {
		err    error
		code   protocol.Code
		reason string
	}{
		{read("/tmp/er/none"), protocol.NotFound, protocol.ReasonPathNotFound},
		{read("/tmp/er/d"), protocol.FailedPrecondition, protocol.ReasonIsDirectory},
		{read("/tmp/er/f/x"), protocol.FailedPrecondition, protocol.ReasonNotDirectory},
		{read("/tmp/er/fifo"), protocol.FailedPrecondition, protocol.ReasonNotRegular},
		{read("/tmp/er/dev"), protocol.FailedPrecondition, protocol.ReasonNotRegular},
		{read("/tmp/er/loop"), protocol.FailedPrecondition, protocol.ReasonLinkLoop},
		{read("a\x00b"), protocol.InvalidArgument, ""},
		{read(""), protocol.InvalidArgument, ""},
		{read(strings.Repeat("x", 5000)), protocol.InvalidArgument, ""},
		{write("/tmp/er/d"), protocol.FailedPrecondition, protocol.ReasonIsDirectory},
		{write("/tmp/er/none/f"), protocol.NotFound, protocol.ReasonPathNotFound},
	} {
		if e := protocol.AsError(c.err); c.err == nil || e.Code != c.code || c.reason != "" && e.Reason != c.reason {
			t.Errorf("got %v, want %s %s", c.err, c.code, c.reason)
		}
	}
	as := b.box.Files(sdk.WithUser("1234:1234"))
	_, err := as.ReadFile(ctx, "/tmp/er/secret/x")
	wantReason(t, err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	_, err = as.WriteFile(ctx, "/etc/of-another", nil)
	wantReason(t, err, protocol.PermissionDenied, protocol.ReasonPathDenied)
	info, err := as.WriteFile(ctx, "/tmp/of-another", nil)
	if err != nil || info.UID != 1234 {
		t.Errorf("a file of another user: %+v, %v", info, err)
	}
	_, err = b.box.Files(sdk.WithUser("nobody-there")).Stat(ctx, "/")
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonUserUnknown)
	_, err = b.box.Files(sdk.WithService("none")).Stat(ctx, "/")
	wantReason(t, err, protocol.InvalidArgument, "")
	_, err = b.f.Client.Sandbox("no-such-sandbox").Files().Stat(ctx, "/")
	wantReason(t, err, protocol.NotFound, "")
	_, err = b.WriteFile(ctx, "/tmp/er/owned", nil, sdk.WithOwner("many"))
	wantReason(t, err, protocol.InvalidArgument, "")
}

// long sends a request and gets an answer that do not fit into the opening of a stream.
func (b boxed) long(ctx context.Context, t *testing.T) {
	old, replacement := strings.Repeat("a", 500_000), strings.Repeat("b", 600_000)
	b.put(ctx, t, "/tmp/lo/file", "<"+old+">")
	if _, err := b.Edit(ctx, "/tmp/lo/file", []byte(old), []byte(replacement)); err != nil {
		t.Fatal(err)
	}
	b.want(ctx, t, "/tmp/lo/file", "<"+replacement+">")
	_, err := b.Edit(ctx, "/tmp/lo/file", []byte(old), nil)
	wantReason(t, err, protocol.FailedPrecondition, protocol.ReasonNoMatch)
	b.sh(ctx, t, "mkdir -p /tmp/lo/many && cd /tmp/lo/many && "+
		"for i in $(seq 2000); do echo file-with-a-long-name-$i; done | xargs touch")
	all, err := sdk.ReadAll(b.List(ctx, "/tmp/lo/many", sdk.WithPageSize(5000)))
	if err != nil || len(all) != 2000 {
		t.Errorf("%d files are listed: %v", len(all), err)
	}
}

// refused uploads from a source that has nothing to read yet. The sandbox refuses the upload meanwhile.
func (b boxed) refused(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/re && echo > /tmp/re/file")
	soon, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for reason, upload := range map[string]func(io.Reader) error{
		protocol.ReasonPathNotFound: func(r io.Reader) error { _, err := b.Write(soon, "/tmp/re/none/f", r); return err },
		protocol.ReasonNotDirectory: func(r io.Reader) error { _, err := b.Unpack(soon, "/tmp/re/file/d", r); return err },
		protocol.ReasonUserUnknown: func(r io.Reader) error {
			_, err := b.box.Files(sdk.WithUser("nobody-there")).Write(soon, "/tmp/re/f", r)
			return err
		},
	} {
		source, w := io.Pipe()
		context.AfterFunc(soon, func() { w.Close() })
		if err := upload(source); protocol.AsError(err).Reason != reason {
			t.Errorf("got %v, want %s", err, reason)
		}
		w.Close()
	}
}

// tooMuch reads from a sandbox that sends more than the caller accepts: here a file of 1 TB, most of which is a hole.
func (b boxed) tooMuch(ctx context.Context, t *testing.T) {
	b.sh(ctx, t, "mkdir -p /tmp/mu/d && cd /tmp/mu/d && echo small > a && truncate -s 1000G b")
	const most = 1 << 20
	target := t.TempDir()
	_, err := b.Download(ctx, "/tmp/mu/d", target+"/tree", sdk.WithMaxBytes(most))
	wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge)
	if left, err := os.ReadDir(target + "/tree"); err != nil || len(left) != 1 || left[0].Name() != "a" {
		t.Errorf("the copy has %v, %v", left, err)
	}
	_, err = b.Download(ctx, "/tmp/mu/d/b", target+"/file", sdk.WithMaxBytes(most))
	wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge)
	_, err = b.Pack(ctx, "/tmp/mu/d", io.Discard, sdk.WithMaxBytes(most))
	wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge)
	_, err = b.ReadFile(ctx, "/tmp/mu/d/b", sdk.WithMaxBytes(most))
	wantReason(t, err, protocol.ResourceExhausted, protocol.ReasonTooLarge)
	_, err = b.Download(ctx, "/tmp/mu/d", target, sdk.WithMaxBytes(-1))
	wantReason(t, err, protocol.InvalidArgument, "")
	got, err := b.ReadFile(ctx, "/tmp/mu/d/a", sdk.WithMaxBytes(6))
	if err != nil || string(got) != "small\n" {
		t.Errorf("a file that is as large as accepted: %q, %v", got, err)
	}
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond) // without a limit, the context ends a download
	defer cancel()
	_, err = b.Download(soon, "/tmp/mu/d", target+"/tree")
	if protocol.CodeOf(err) != protocol.DeadlineExceeded {
		t.Errorf("a download without end: %v", err)
	}
}

// history checks that the history tells of each operation that changes files, and of none that reads.
func (b boxed) history(ctx context.Context, t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(source+"/f", []byte("abcd"), 0o600); err != nil {
		t.Fatal(err)
	}
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	do(b.Mkdir(ctx, "/tmp/hi/mkdir", sdk.WithParents()))
	do(b.WriteFile(ctx, "/tmp/hi/short", []byte("ab")))
	do(b.Move(ctx, "/tmp/hi/short", "/tmp/hi/move"))
	do(b.Copy(ctx, "/tmp/hi/move", "/tmp/hi/copy"))
	do(b.Edit(ctx, "/tmp/hi/copy", []byte("ab"), []byte("c")))
	do(b.Remove(ctx, "/tmp/hi/copy"))
	do(b.Upload(ctx, source, "/tmp/hi/unpack"))
	do(b.Write(ctx, "/tmp/hi/write", strings.NewReader(strings.Repeat("x", 100_000))))
	do(b.Stat(ctx, "/tmp/hi"))
	do(b.ReadFile(ctx, "/tmp/hi/write"))
	do(b.Pack(ctx, "/tmp/hi", io.Discard))
	b.f.Eventually(30*time.Second, "the history tells of all changes", func() error {
		paths, sent := map[string]string{}, map[string]int64{}
		for e, err := range b.box.Events(ctx) {
			if err != nil {
				return err
			}
			for _, u := range e.Streams {
				if u.User == "" || u.Kind != protocol.StreamKindFile || u.Operation == "" && u.Sent > 0 {
					return fmt.Errorf("the history tells of %+v", u)
				}
				if u.Operation == "" {
					continue // streams that read
				}
				paths[u.Operation] = u.Path
				sent[u.Operation] += u.Sent
			}
		}
		if len(paths) != 7 || sent["write"] < 100_002 || sent["unpack"] < 4 || sent["edit"] < 1 {
			return fmt.Errorf("the history tells of %v and %v", paths, sent)
		}
		for _, operation := range []string{"mkdir", "move", "copy", "unpack", "write"} {
			if want := "/tmp/hi/" + operation; paths[operation] != want {
				return fmt.Errorf("the last path of %s is %q, want %q", operation, paths[operation], want)
			}
		}
		return nil
	})
}

// atRead is an empty reader that calls a function.
type atRead struct{ f func() }

func (a *atRead) Read([]byte) (int, error) {
	a.f()
	return 0, io.EOF
}

func (b boxed) hundred(ctx context.Context, t *testing.T) {
	content := strings.Repeat("x", 200_000)
	var group errgroup.Group
	for i := range 100 {
		group.Go(func() error {
			path := fmt.Sprintf("/tmp/hu/%d", i)
			if _, err := b.Write(ctx, path, strings.NewReader(content), sdk.WithParents()); err != nil {
				return fmt.Errorf("write %s: %w", path, err)
			}
			if got, err := b.ReadFile(ctx, path); err != nil || string(got) != content {
				return fmt.Errorf("read %s: %d bytes, %w", path, len(got), err)
			}
			_, err := b.Stat(ctx, path)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// manyUsers works as more users than a container may have helpers. Idle helpers of some must make room for others.
func (b boxed) manyUsers(ctx context.Context, t *testing.T) {
	for user := range 40 {
		files := b.box.Files(sdk.WithUser(fmt.Sprint(3000 + user)))
		var group errgroup.Group
		for range 4 {
			group.Go(func() error { _, err := files.Stat(ctx, "/tmp"); return err })
		}
		if err := group.Wait(); err != nil {
			t.Fatalf("user %d: %v", user, err)
		}
	}
}

func (b boxed) latency(ctx context.Context, t *testing.T) {
	const rounds = 200
	began := time.Now()
	for range rounds {
		if _, err := b.Stat(ctx, "/etc/passwd"); err != nil {
			t.Fatal(err)
		}
	}
	stat := time.Since(began) / rounds
	began = time.Now()
	for range rounds {
		if _, err := b.WriteFile(ctx, "/tmp/latency", make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	write := time.Since(began) / rounds
	t.Logf("a stat takes %s, a write of 1 KB %s", stat, write)
	if stat > 10*time.Millisecond {
		t.Errorf("a stat takes %s", stat)
	}
}
