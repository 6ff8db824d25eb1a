package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// cpCommands are the commands that carry files.
type cpCommands struct{ *client }

// cpFlags are the flags of `boxfleet cp`.
type cpFlags struct {
	fileFlags
	exclude             []string
	owner, maxBytes     string
	compress            string
	most                protocol.Bytes // maxBytes as a number
	tar, links, visible bool
}

const cpHelp = `Copy files between this machine and a sandbox. One of SRC and DST is SANDBOX:PATH, the other one a local
path, or - for stdin or stdout. A relative PATH begins at the sandbox's working directory. A local path with
a colon is written ./a:b. To work on files inside a sandbox, use "boxfleet fs", which takes SANDBOX and PATH as
two arguments.

The destination is chosen as cp -r and docker cp do it:

  SRC is a file:       DST is a directory        DST/name-of-SRC
                       DST ends with a slash     DST must be a directory
                       otherwise                 DST becomes the file, and replaces one that exists
  SRC is a directory:  DST does not exist        DST becomes a copy of SRC
                       DST is a directory        DST/name-of-SRC; with SRC/. the content goes into DST
                       DST is a file             refused

With -, the content of one file is read from stdin or written to stdout; with --tar, a tar stream of a directory.

Modes are kept. Files belong to --user in the sandbox, and to you on this machine, where setuid, setgid and sticky
bits are left out. A file appears at once and complete; if the copy of a directory is cut off, the complete files
are left. Nothing outside of DST is written, whatever the sandbox sends. Devices, sockets, pipes, unreadable files
and, without --keep-links, links that lead out of a directory from a sandbox are left out; boxfleet then names
them and exits with 1. A sandbox may send without end: --max-bytes limits what you accept.`

func (cmds cpCommands) cpCommand() *cobra.Command {
	var f cpFlags
	cmd := &cobra.Command{
		Use: "cp SRC DST", Short: "Copy files between this machine and a sandbox", Long: cpHelp,
		Example: "  boxfleet cp src web:/work/src\n  boxfleet cp web:/work/out/. results --exclude '*.o'\n" +
			"  boxfleet cp web:/var/log/app.log - | less\n  tar c . | boxfleet cp --tar - web:/work",
		RunE: func(cmd *cobra.Command, args []string) error {
			src, dst, err := f.sides(cmd, args)
			if err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				if src.sandbox == "" {
					return cmds.copyIn(ctx, f, src, dst, f.of(c, dst.sandbox))
				}
				return cmds.copyOut(ctx, f, src, dst, f.of(c, src.sandbox))
			})
		},
		Args: func(cmd *cobra.Command, args []string) error { return counts(cmd, args, "SRC", "DST") },
	}
	f.add(cmd)
	cmd.Flags().StringArrayVar(&f.exclude, "exclude", nil,
		"leave out what this `pattern` matches, as in .gitignore; may be repeated")
	cmd.Flags().StringVar(&f.owner, "owner", "", "`uid[:gid]` of the files in the sandbox (default: --user)")
	cmd.Flags().StringVar(&f.maxBytes, "max-bytes", "",
		"end a copy from a sandbox after this many `bytes`, such as 10g (default: no limit)")
	cmd.Flags().StringVar(&f.compress, "compress", "auto",
		"`when` to compress directories on their way: auto (while the link is slow), always or never")
	cmd.Flags().BoolVar(&f.tar, "tar", false, "with -, carry a tar stream of a directory")
	cmd.Flags().BoolVar(&f.links, "keep-links", false, "also keep links that lead out of a directory from a sandbox")
	cmd.Flags().BoolVar(&f.visible, "progress", true, "show the progress if stderr is a terminal")
	return cmd
}

// side is one of SRC and DST. sandbox is empty for a path of this machine.
type side struct{ sandbox, path string }

func (s side) isPipe() bool { return s.sandbox == "" && s.path == "-" }

// parseSide splits SANDBOX:PATH. A slash or a leading dot before the colon makes it a path of this machine.
func parseSide(arg string) side {
	sandbox, path, found := strings.Cut(arg, ":")
	if !found || sandbox == "" || strings.ContainsRune(sandbox, '/') || strings.HasPrefix(sandbox, ".") {
		return side{path: arg}
	}
	if path == "" {
		path = "."
	}
	return side{sandbox, path}
}

func (f *cpFlags) sides(cmd *cobra.Command, args []string) (src, dst side, err error) {
	src, dst = parseSide(args[0]), parseSide(args[1])
	given := cmd.Flags().Changed
	switch {
	case src.sandbox != "" && dst.sandbox != "":
		err = usage("SRC and DST are both in a sandbox; copy with: boxfleet cp --tar %s - | boxfleet cp --tar - %s",
			args[0], args[1])
	case src.sandbox == "" && dst.sandbox == "":
		err = usage("neither SRC nor DST is in a sandbox: write SANDBOX:PATH")
	case f.tar && !src.isPipe() && !dst.isPipe():
		err = usage("--tar needs - as SRC or DST")
	case given("owner") && dst.sandbox == "":
		err = usage("--owner: files that leave a sandbox belong to you")
	case given("keep-links") && (src.sandbox == "" || dst.isPipe()):
		err = usage("--keep-links is for a directory that is copied from a sandbox to this machine")
	case f.compress != "auto" && f.compress != "always" && f.compress != "never":
		err = usage("--compress must be auto, always or never, got %.40q", f.compress)
	case given("max-bytes") && src.sandbox == "":
		err = usage("--max-bytes is for copies from a sandbox")
	case given("exclude") && (src.isPipe() || dst.isPipe() && !f.tar):
		err = usage("--exclude is for directories")
	case src.path == "" || dst.path == "":
		err = usage("SRC and DST must not be empty")
	default:
		err = protocol.ValidateID("SANDBOX", src.sandbox+dst.sandbox)
	}
	if err == nil {
		err = sdk.CheckExclude(f.exclude)
	}
	if err == nil {
		err = size("--max-bytes", &f.most, f.maxBytes)
	}
	if err == nil {
		err = f.check(cmd)
	}
	return src, dst, err
}

// compression returns the option of --compress.
func (f *cpFlags) compression() sdk.CompressionOption {
	if f.compress == "never" {
		return sdk.WithCompression(protocol.CompressNever)
	}
	return sdk.WithCompression(protocol.FileCompression(f.compress))
}

// finished prints the number of copied files, and a warning about files that were skipped.
func (cmds cpCommands) finished(count *sdk.FileCount) error {
	if err := cmds.show(count, func(io.Writer) {}); err != nil {
		return err
	}
	return cmds.skipped(count)
}

// watching returns a function that shows how much was carried.
func (cmds cpCommands) watching(f cpFlags, what string) (report func(done, total int64), done func()) {
	if !f.visible {
		return func(int64, int64) {}, func() {}
	}
	tell, done := cmds.progressing(what)
	return func(sent, total int64) {
		if total >= 0 {
			tell(what + " " + bar(sent, total))
		} else {
			tell(what + " " + protocol.Bytes(sent).String())
		}
	}, done
}

// copyIn copies from this machine into a sandbox.
func (cmds cpCommands) copyIn(ctx context.Context, f cpFlags, src, dst side, files *sdk.Files) error {
	report, done := cmds.watching(f, "copying "+src.path)
	defer done()
	if src.isPipe() {
		return cmds.pipeIn(ctx, f, dst.path, files)
	}
	info, err := os.Stat(src.path)
	if err != nil {
		return usage("%v", err)
	}
	is, err := kindIn(ctx, files, dst.path)
	if err != nil {
		return err
	}
	name, err := filepath.Abs(src.path)
	if err != nil {
		return usage("%v", err)
	}
	target, err := destination(filepath.Base(name), endsInDot(src.path), info.IsDir(), dst.path, is)
	if err != nil {
		return err
	}
	count, err := files.Upload(ctx, src.path, target, sdk.WithExclude(f.exclude...), sdk.WithOwner(f.owner),
		sdk.WithOverwrite(), sdk.WithProgress(report), f.compression())
	done()
	if err != nil {
		return err
	}
	return cmds.finished(count)
}

func (cmds cpCommands) pipeIn(ctx context.Context, f cpFlags, target string, files *sdk.Files) error {
	if f.tar {
		count, err := files.Unpack(ctx, target, cmds.stdin, sdk.WithOwner(f.owner), sdk.WithOverwrite(),
			f.compression())
		if err != nil {
			return err
		}
		return cmds.finished(count)
	}
	info, err := files.Write(ctx, target, cmds.stdin, sdk.WithOwner(f.owner))
	if err != nil {
		return err
	}
	return cmds.finished(&sdk.FileCount{Entries: 1, Bytes: info.Size})
}

// copyOut copies from a sandbox to this machine.
func (cmds cpCommands) copyOut(ctx context.Context, f cpFlags, src, dst side, files *sdk.Files) error {
	report, done := cmds.watching(f, "copying "+src.path)
	defer done()
	if dst.isPipe() {
		return cmds.pipeOut(ctx, f, src.path, files)
	}
	from, err := files.Stat(ctx, src.path, sdk.WithFollowedLinks())
	if err != nil {
		return err
	}
	is, err := kindHere(dst.path)
	if err != nil {
		return err
	}
	base := path.Base(path.Clean("/" + src.path))
	if name := path.Base(path.Clean(src.path)); name == "." || name == ".." || name == "/" {
		base = ""
	}
	target, err := destination(base, endsInDot(src.path), from.Type == protocol.FileDirectory, dst.path, is)
	if err != nil {
		return err
	}
	opts := []sdk.DownloadOption{sdk.WithExclude(f.exclude...), sdk.WithProgress(report),
		sdk.WithMaxBytes(f.most), f.compression()}
	if f.links {
		opts = append(opts, sdk.WithKeptLinks())
	}
	count, err := files.Download(ctx, src.path, target, opts...)
	done()
	if err != nil {
		return err
	}
	return cmds.finished(count)
}

func (cmds cpCommands) pipeOut(ctx context.Context, f cpFlags, source string, files *sdk.Files) error {
	if f.tar {
		count, err := files.Pack(ctx, source, cmds.stdout, sdk.WithExclude(f.exclude...),
			sdk.WithMaxBytes(f.most), f.compression())
		if err != nil {
			return err
		}
		return cmds.skipped(count)
	}
	return cmds.cat(ctx, files, source, sdk.WithMaxBytes(f.most))
}

// kind says what a destination is.
type kind int

const (
	missing kind = iota
	directory
	other
)

func kindIn(ctx context.Context, files *sdk.Files, path string) (kind, error) {
	info, err := files.Stat(ctx, path, sdk.WithFollowedLinks())
	switch {
	case isMissing(err):
		return missing, nil
	case err != nil:
		return missing, err
	case info.Type == protocol.FileDirectory:
		return directory, nil
	}
	return other, nil
}

func kindHere(path string) (kind, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing, nil
	case err != nil:
		return missing, usage("%v", err)
	case info.IsDir():
		return directory, nil
	}
	return other, nil
}

// endsInDot reports whether a path means the content of a directory.
func endsInDot(path string) bool { return path == "." || strings.HasSuffix(path, "/.") }

// destination returns the path that a source gets. base is the source's name, or empty if the source's path does not
// show a name.
func destination(base string, content, isDirectory bool, dst string, is kind) (string, error) {
	switch {
	case is == directory && isDirectory && (content || base == "" || base == "/"), is == missing && isDirectory:
		return dst, nil
	case is == directory:
		return strings.TrimSuffix(dst, "/") + "/" + base, nil
	case isDirectory:
		return "", protocol.Errorf(protocol.FailedPrecondition, protocol.ReasonNotDirectory,
			"cannot copy a directory to %s, which is no directory", dst)
	case strings.HasSuffix(dst, "/"):
		return "", protocol.Errorf(protocol.NotFound, protocol.ReasonPathNotFound,
			"there is no directory %s: create it first, or leave out the slash at the end", dst)
	}
	return dst, nil
}
