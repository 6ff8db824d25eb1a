package shell

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"
	"strings"

	"github.com/boxfleet/boxfleet/sdk/environment"
)

// scriptRoom is how many bytes a script has in addition to the content that it carries: paths, which quoting may make
// four times longer, and the commands.
const scriptRoom = 48 << 10

// Exit codes of the scripts that work on files.
const (
	exitNotFound = 81 + iota
	exitIsDirectory
	exitNotDirectory
	exitNotRegular
	exitPermission
	exitNoBase64
	exitTooLarge
	exitLinks
)

var fileErrors = map[int]struct {
	kind environment.Kind
	text string
}{
	exitNotFound:     {environment.NotFound, "there is no such file or directory"},
	exitIsDirectory:  {environment.IsDirectory, "it is a directory"},
	exitNotDirectory: {environment.NotDirectory, "it, or a part of its path, is not a directory"},
	exitNotRegular:   {environment.NotRegular, "it is a device, a FIFO or a socket"},
	exitPermission:   {environment.Permission, "the user may not do this"},
	exitNoBase64:     {environment.Unsupported, "the environment has no program base64"},
	exitTooLarge:     {environment.TooLarge, "it is larger than this call can return"},
	exitLinks:        {environment.Failed, "there are too many symbolic links"},
}

// chunk returns how many bytes of a file one script carries. Base64 turns three bytes into four, and adds a line break
// to each line.
func (e *Environment) chunk() int { return (e.maxScript - scriptRoom) / 78 * 57 }

// fileError explains the exit code of a script.
func fileError(doing, path string, code int, stderr []byte) error {
	if known, ok := fileErrors[code]; ok {
		return environment.Errorf(known.kind, "%s %s: %s", doing, path, known.text)
	}
	return environment.Errorf(environment.Failed, "%s %s: exit code %d: %s", doing, path, code,
		bytes.TrimSpace(lastOf(stderr, maxNoise)))
}

// script runs a script that prints little.
func (e *Environment) script(ctx context.Context, doing, path, text string) ([]byte, error) {
	result, err := environment.Collect(e.execute(ctx, text, environment.Options{}))
	if err != nil {
		return nil, err
	}
	if result.ExitCode != 0 {
		return nil, fileError(doing, path, result.ExitCode, result.Stderr)
	}
	if result.Truncated {
		return nil, fileError(doing, path, exitTooLarge, nil)
	}
	return result.Stdout, nil
}

// needed is the beginning of scripts that need base64.
var needed = fmt.Sprintf("command -v base64 >/dev/null || exit %d\n", exitNoBase64)

// readable sets p to a path and checks that it can be read.
func readable(path string) string {
	return needed + fmt.Sprintf(`p=%s
[ -e "$p" ] || { [ -L "$p" ] || [ -x "$(dirname "$p")" ] || [ ! -d "$(dirname "$p")" ] || exit %d; exit %d; }
[ ! -d "$p" ] || exit %d
[ -f "$p" ] || exit %d
[ -r "$p" ] || exit %d
`, environment.Quote(rooted(path)), exitPermission, exitNotFound, exitIsDirectory, exitNotRegular, exitPermission)
}

// ReadFile implements [environment.Environment].
func (e *Environment) ReadFile(ctx context.Context, path string) ([]byte, error) {
	tooLarge := fmt.Sprintf("[ $(wc -c <\"$p\") -le %d ] || exit %d\n", environment.MaxReadFile, exitTooLarge)
	r, err := e.open(ctx, path, tooLarge)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, environment.MaxReadFile+1))
	if err == nil && len(content) > environment.MaxReadFile {
		err = environment.Errorf(environment.TooLarge, "read %s: it has more than %d bytes; use OpenFile", path,
			environment.MaxReadFile)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// OpenFile implements [environment.Streamer].
func (e *Environment) OpenFile(ctx context.Context, path string) (io.ReadCloser, error) {
	return e.open(ctx, path, "")
}

// open opens a file after one more check of the file "$p".
func (e *Environment) open(ctx context.Context, path, check string) (io.ReadCloser, error) {
	if err := environment.CheckPath("path", path); err != nil {
		return nil, err
	}
	next, stop := iter.Pull2(e.execute(ctx, readable(path)+check+"exec base64 <\"$p\"", environment.Options{}))
	out := &output{next: next, doing: "read", path: path}
	if err := out.fill(); err != nil && !errors.Is(err, io.EOF) { // finds the errors of opening
		stop()
		return nil, err
	}
	return &decoder{from: base64.NewDecoder(base64.StdEncoding.Strict(), out), path: path, stop: stop}, nil
}

// output reads the stdout of a script.
type output struct {
	next        func() (environment.Event, error, bool)
	doing, path string
	held        []byte
	stderr      []byte
	err         error
}

// fill reads the next bytes, or the end of the stream.
func (o *output) fill() error {
	for o.err == nil && len(o.held) == 0 {
		event, err, ok := o.next()
		switch {
		case err != nil:
			o.err = err
		case !ok:
			o.err = io.ErrUnexpectedEOF
		case event.Result != nil && event.Result.ExitCode != 0:
			o.err = fileError(o.doing, o.path, event.Result.ExitCode, o.stderr)
		case event.Result != nil:
			o.err = io.EOF
		case event.Stream == environment.Stderr:
			o.stderr = lastOf(append(o.stderr, event.Data...), maxNoise)
		default:
			o.held = event.Data
		}
	}
	if len(o.held) > 0 {
		return nil
	}
	return o.err
}

func (o *output) Read(p []byte) (int, error) {
	if err := o.fill(); err != nil {
		return 0, err
	}
	n := copy(p, o.held)
	o.held = o.held[n:]
	return n, nil
}

// decoder reads the content of a file.
type decoder struct {
	from io.Reader
	path string
	stop func()
}

func (d *decoder) Read(p []byte) (int, error) {
	n, err := d.from.Read(p)
	var corrupt base64.CorruptInputError
	if errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = environment.Errorf(environment.Garbled, "read %s: the answer is not valid base64: %v", d.path, err)
	}
	return n, err
}

func (d *decoder) Close() error {
	d.stop()
	return nil
}

// WriteFile implements [environment.Environment].
func (e *Environment) WriteFile(ctx context.Context, path string, content []byte) error {
	return e.WriteFileFrom(ctx, path, bytes.NewReader(content))
}

// WriteFileFrom implements [environment.Streamer].
func (e *Environment) WriteFileFrom(ctx context.Context, path string, content io.Reader) error {
	if err := environment.CheckPath("path", path); err != nil {
		return err
	}
	w := &writing{e: e, path: path, temporary: ".boxfleet-" + newID()}
	buf := make([]byte, e.chunk())
	for {
		n, err := io.ReadFull(content, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			w.drop(ctx)
			return err
		}
		if err := w.write(ctx, buf[:n], last); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
}

// writing is a file that is being written in several scripts.
type writing struct {
	e               *Environment
	path, temporary string
	begun           bool
}

// target sets p to the file that a path leads to and t to the temporary file beside it. A link at the end of the path
// is followed.
func (w *writing) target() string {
	return needed + fmt.Sprintf(`p=%s; n=0
case $p in */|*/.|*/..) exit %d;; esac
while [ -L "$p" ]; do
	n=$((n+1)); [ $n -le 40 ] || exit %d
	l=$(readlink "$p" && echo x) || exit 1
	l=${l%%?x}
	case $l in /*) p=$l;; *) p=${p%%/*}/$l;; esac
done
[ ! -d "$p" ] || exit %d
d=${p%%/*}; t=$d/%s
`, environment.Quote(rooted(w.path)), exitIsDirectory, exitLinks, exitIsDirectory, w.temporary)
}

// begin creates the temporary file, with the mode of the file that it will replace.
func (w *writing) begin() string {
	return fmt.Sprintf(`a=$d
while [ -n "$a" ] && [ ! -e "$a" ] && [ ! -L "$a" ]; do b=${a%%/*}; [ "$b" != "$a" ] || break; a=$b; done
[ -z "$a" ] || [ -d "$a" ] || exit %d
[ -d "$d" ] || [ -z "$d" ] || mkdir -p "$d" || { [ -w "$a" ] || exit %d; exit 1; }
[ ! -e "$p" ] || [ -f "$p" ] || exit %d
[ ! -e "$p" ] || [ -w "$p" ] || exit %d
[ -w "${d:-/}" ] || exit %d
umask 022
if [ -f "$p" ]; then cp -p "$p" "$t" && { [ -w "$t" ] || chmod u+w "$t"; } || { rm -f "$t"; exit 1; }; fi
: >"$t" || exit 1
`, exitNotDirectory, exitPermission, exitNotRegular, exitPermission, exitPermission)
}

// write writes one chunk; the last one also puts the file in its place.
func (w *writing) write(ctx context.Context, chunk []byte, last bool) error {
	var s strings.Builder
	s.WriteString(w.target())
	if !w.begun {
		s.WriteString(w.begin())
	}
	w.begun = true
	end := "end-" + newID()
	s.WriteString("base64 -d >>\"$t\" <<'" + end + "' || { rm -f \"$t\"; exit 1; }\n" + encode(chunk) + end + "\n")
	if last {
		s.WriteString(`if [ -f "$p" ] && [ ! -w "$p" ]; then rm -f "$t"; exit 1; fi
mv -f "$t" "$p" || { rm -f "$t"; exit 1; }
`)
	}
	_, err := w.e.script(ctx, "write", w.path, s.String())
	if err != nil && ctx.Err() != nil {
		w.drop(ctx)
	}
	return err
}

// drop removes the temporary file.
func (w *writing) drop(ctx context.Context) {
	if !w.begun {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	_, _ = w.e.script(ctx, "write", w.path, w.target()+`rm -f "$t"`) // the first error says more
}

// RemoveFile implements [environment.Environment].
func (e *Environment) RemoveFile(ctx context.Context, path string) error {
	if err := environment.CheckPath("path", path); err != nil {
		return err
	}
	_, err := e.script(ctx, "remove", path, fmt.Sprintf(`p=%s
[ -L "$p" ] || [ -e "$p" ] || { [ -x "$(dirname "$p")" ] || [ ! -d "$(dirname "$p")" ] || exit %d; exit %d; }
case $p in */) exit %d;; esac
[ -L "$p" ] || [ ! -d "$p" ] || exit %d
[ -L "$p" ] || [ -f "$p" ] || exit %d
rm -f "$p" || { [ -w "$(dirname "$p")" ] || exit %d; exit 1; }
`, environment.Quote(rooted(path)), exitPermission, exitNotFound, exitIsDirectory, exitIsDirectory, exitNotRegular,
		exitPermission))
	return err
}

// ListFiles implements [environment.Environment]. It does not use ls, which prints a name with a newline as two.
func (e *Environment) ListFiles(ctx context.Context, path string) ([]environment.File, error) {
	if err := environment.CheckPath("path", path); err != nil {
		return nil, err
	}
	out, err := e.script(ctx, "list", path, fmt.Sprintf(`p=%s
[ -e "$p" ] || { [ -x "$(dirname "$p")" ] || [ ! -d "$(dirname "$p")" ] || exit %d; exit %d; }
[ -d "$p" ] || exit %d
[ -r "$p" ] && [ -x "$p" ] || exit %d
cd "$p" || exit 1
for f in * .*; do
	case $f in .|..) continue;; esac
	if [ -L "./$f" ]; then t=l; elif [ -f "./$f" ]; then t=f; elif [ -d "./$f" ]; then t=d
	elif [ -e "./$f" ]; then t=o; else continue; fi
	printf '%%s%%s\000' "$t" "$f"
done
`, environment.Quote(rooted(path)), exitPermission, exitNotFound, exitNotDirectory, exitPermission))
	if err != nil {
		return nil, err
	}
	return parseList(path, out)
}

var typeOf = map[byte]environment.FileType{'f': environment.TypeFile, 'd': environment.TypeDirectory,
	'l': environment.TypeLink, 'o': environment.TypeOther}

// parseList reads names that end in NUL, each after the letter of its type.
func parseList(path string, out []byte) ([]environment.File, error) {
	files := []environment.File{}
	for len(out) > 0 {
		entry, rest, ok := bytes.Cut(out, []byte{0})
		if !ok || len(entry) < 2 || typeOf[entry[0]] == "" || bytes.ContainsRune(entry, '/') {
			return nil, environment.Errorf(environment.Garbled, "list %s: the answer is not a list of names", path)
		}
		files = append(files, environment.File{Name: string(entry[1:]), Type: typeOf[entry[0]]})
		out = rest
	}
	sort.Slice(files, func(i, k int) bool { return files[i].Name < files[k].Name })
	return files, nil
}
