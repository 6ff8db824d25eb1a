package main

import (
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// fileFlags are the flags of the commands that work on files.
type fileFlags struct{ service, user string }

func (f *fileFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.service, "service", "",
		"work in the container of this `service` (default: the sandbox's own)")
	cmd.Flags().StringVar(&f.user, "user", "", "user, uid, or either with :group (default: the sandbox's)")
}

func (f *fileFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("service") {
		return protocol.ValidateID("--service", f.service)
	}
	return nil
}

func (f *fileFlags) of(c *sdk.Client, sandbox string) *sdk.Files {
	return c.Sandbox(sandbox).Files(sdk.WithService(f.service), sdk.WithUser(f.user))
}

// takesPaths accepts a sandbox and then at least one argument for each name, and at most this many arguments after the
// sandbox; -1 means any number. It refuses SANDBOX:PATH, which is the form of `boxfleet cp`, and says what to write.
func takesPaths(most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if sandbox, path, found := strings.Cut(args[0], ":"); found && sandbox != "" && path != "" {
				return usage("SANDBOX and PATH are two arguments of %s: write %s %s", cmd.CommandPath(), sandbox, path)
			}
		}
		all := append([]string{"SANDBOX"}, names...)
		if most >= 0 && len(args) > most+1 {
			return usage("unexpected argument %q; see %s --help", args[most+1], cmd.CommandPath())
		}
		if len(args) < len(all) {
			return counts(cmd, args, all...)
		}
		return protocol.ValidateID("SANDBOX", args[0])
	}
}

// pathOf returns an optional path argument. The default is the working directory of the container.
func pathOf(args []string, at int) string {
	if at < len(args) {
		return args[at]
	}
	return "."
}

const permissionBits = 12 // number of bits of a mode: rwx for three, setuid, setgid and sticky

// modeOf parses a mode in octal.
func modeOf(text string) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, permissionBits)
	if err != nil {
		return 0, usage("--mode: must be octal, such as 644 or 0755, got %.40q", text)
	}
	mode := fs.FileMode(bits).Perm()
	for bit, special := range map[uint64]fs.FileMode{
		0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= special
		}
	}
	return mode, nil
}

// modeText shows a mode as ls does.
func modeText(i *sdk.FileInfo) string {
	letters := map[sdk.FileType]string{protocol.FileRegular: "-", protocol.FileDirectory: "d", protocol.FileLink: "l",
		protocol.FileFIFO: "p", protocol.FileSocket: "s", protocol.FileDevice: "c"}
	letter, known := letters[i.Type]
	if !known {
		letter = "?"
	}
	mode := []byte(fs.FileMode(i.Mode & 0o777).String())
	for _, s := range []struct {
		bit    uint32
		at     int
		set, x byte
	}{{0o4000, 3, 's', 'S'}, {0o2000, 6, 's', 'S'}, {0o1000, 9, 't', 'T'}} {
		if i.Mode&s.bit != 0 {
			if mode[s.at] == '-' {
				s.set = s.x
			}
			mode[s.at] = s.set
		}
	}
	return letter + string(mode[1:])
}

func ownerText(i *sdk.FileInfo) string {
	name := func(name string, id uint32) string {
		if name != "" {
			return name
		}
		return strconv.FormatUint(uint64(id), 10)
	}
	return name(i.Owner, i.UID) + ":" + name(i.Group, i.GID)
}

func fileRow(i *sdk.FileInfo) []any {
	path := i.Path
	if i.Type == protocol.FileLink {
		path += " -> " + i.Target
	}
	return []any{modeText(i), ownerText(i), i.Size, stamp(i.Modified), path}
}

func printFiles(w io.Writer, files []*sdk.FileInfo) {
	rows := [][]any{{"MODE", "OWNER", "SIZE", "MODIFIED", "PATH"}}
	for _, i := range files {
		rows = append(rows, fileRow(i))
	}
	table(w, rows...)
}

// mostSkips is how many paths that were left out a command names.
const mostSkips = 10

// skipped returns an error if an operation has left out paths. It names the first of them.
func (cl *client) skipped(count *sdk.FileCount) error {
	if count == nil || count.Skips == 0 {
		return nil
	}
	for _, s := range count.Skipped[:min(len(count.Skipped), mostSkips)] {
		cl.note("left out %s: %s", s.Path, s.Error.Message)
	}
	return protocol.Errorf(protocol.FailedPrecondition, "", "%d paths were left out; everything else was copied",
		count.Skips)
}

// isMissing reports whether a path does not exist.
func isMissing(err error) bool {
	var typed *protocol.Error
	return errors.As(err, &typed) && typed.Reason == protocol.ReasonPathNotFound
}
