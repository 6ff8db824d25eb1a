package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// run connects and calls f with the files of a sandbox.
func (cmds fsCommands) run(cmd *cobra.Command, flags *fileFlags, sandbox string,
	f func(ctx context.Context, files *sdk.Files) error) error {
	if err := flags.check(cmd); err != nil {
		return err
	}
	return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error { return f(ctx, flags.of(c, sandbox)) })
}

func (cmds fsCommands) lsCommand() *cobra.Command {
	var flags fileFlags
	var hidden, quiet, recursive bool
	var depth int
	cmd := &cobra.Command{
		Use: "ls SANDBOX [PATH]", Short: "List a directory", Args: takesPaths(1),
		Long:    `List a directory, sorted by name. PATH is the working directory by default.`,
		Example: "  boxfleet fs ls web /etc\n  boxfleet fs ls web --depth 2 -a -q",
		RunE: func(cmd *cobra.Command, args []string) error {
			if recursive {
				depth = -1
			}
			opts := []sdk.ListFilesOption{sdk.WithDepth(depth)}
			if hidden {
				opts = append(opts, sdk.WithHidden())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				found, err := sdk.ReadAll(files.List(ctx, pathOf(args, 1), opts...))
				if err != nil {
					return err
				}
				return cmds.showFiles(found, quiet)
			})
		},
	}
	flags.add(cmd)
	addQuiet(cmd, &quiet)
	cmd.Flags().BoolVarP(&hidden, "all", "a", false, "include names that begin with a dot")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "list all levels below the directory")
	cmd.Flags().IntVar(&depth, "depth", 1, "list this `number` of levels below the directory, -1 for all")
	return cmd
}

func (cmds fsCommands) showFiles(found []*sdk.FileInfo, quiet bool) error {
	if quiet {
		names := make([]string, len(found))
		for i, f := range found {
			names[i] = f.Path
		}
		return cmds.showNames(names)
	}
	if found == nil {
		found = []*sdk.FileInfo{}
	}
	return cmds.show(found, func(w io.Writer) { printFiles(w, found) })
}

func (cmds fsCommands) catCommand() *cobra.Command {
	var flags fileFlags
	var offset, length int64
	cmd := &cobra.Command{
		Use: "cat SANDBOX PATH...", Short: "Print files", Args: takesPaths(-1, "PATH"),
		Long: `Print the content of files, byte for byte, also with -o json. Pipes and devices are refused, so boxfleet never
blocks.`,
		Example: "  boxfleet fs cat web /etc/hosts\n  boxfleet fs cat web app.log --offset 1000 --length 200",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				for _, path := range args[1:] {
					if err := cmds.cat(ctx, files, path, sdk.WithRange(offset, length)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().Int64Var(&offset, "offset", 0, "begin at this `byte`")
	cmd.Flags().Int64Var(&length, "length", 0, "print this `number` of bytes, 0 for all")
	return cmd
}

// cat writes the content of a file to stdout.
func (cmds cpCommands) cat(ctx context.Context, files *sdk.Files, path string, opts ...sdk.ReadFileOption) error {
	r, err := files.Read(ctx, path, opts...)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(cmds.stdout, r)
	return err
}

func (cmds fsCommands) statCommand() *cobra.Command {
	var flags fileFlags
	var follow bool
	cmd := &cobra.Command{
		Use: "stat SANDBOX PATH...", Short: "Describe paths", Args: takesPaths(protocol.MaxFilePaths, "PATH"),
		Long: `Describe paths: type, size, mode, owner, times. If one of them cannot be described, boxfleet says why after
the others, and exits with 1.`,
		Example: "  boxfleet fs stat web /etc/hosts src\n  boxfleet fs stat web /etc/localtime --follow -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts []sdk.StatOption
			if follow {
				opts = append(opts, sdk.WithFollowedLinks())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				results, err := files.StatAll(ctx, args[1:], opts...)
				if err != nil {
					return err
				}
				return cmds.showResults(args[1:], results)
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "L", false, "describe what a symbolic link leads to")
	return cmd
}

func (cmds fsCommands) showResults(paths []string, results []sdk.FileResult) error {
	var found []*sdk.FileInfo
	var failure error
	for i, r := range results {
		if r.File != nil {
			found = append(found, r.File)
			continue
		}
		if !cmds.json() && failure != nil {
			cmds.complain(failure)
		}
		failure = protocol.Errorf(r.Error.Code, r.Error.Reason, "%s: %s", paths[i], r.Error.Message)
	}
	if err := cmds.show(results, func(w io.Writer) {
		if len(found) > 0 {
			printFiles(w, found)
		}
	}); err != nil {
		return err
	}
	return failure
}

func (cmds fsCommands) globCommand() *cobra.Command {
	var flags fileFlags
	var hidden, quiet bool
	var exclude []string
	cmd := &cobra.Command{
		Use: "glob SANDBOX PATTERN [PATH]", Short: "Find paths that match a pattern", Args: takesPaths(2, "PATTERN"),
		Long: `Find the paths below PATH, by default the working directory, that match a pattern. * and ? match within a name,
** matches any number of directories, {a,b} matches either text.`,
		Example: "  boxfleet fs glob web 'src/**/*.go' -q\n  boxfleet fs glob web '**/*.py' /work --exclude .venv",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []sdk.GlobOption{sdk.WithExclude(exclude...)}
			if hidden {
				opts = append(opts, sdk.WithHidden())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				found, err := sdk.ReadAll(files.Glob(ctx, pathOf(args, 2), args[1], opts...))
				if err != nil {
					return err
				}
				return cmds.showFiles(found, quiet)
			})
		},
	}
	flags.add(cmd)
	addQuiet(cmd, &quiet)
	addExclude(cmd, &exclude)
	cmd.Flags().BoolVarP(&hidden, "all", "a", false, "include names that begin with a dot")
	return cmd
}

func addExclude(cmd *cobra.Command, exclude *[]string) {
	cmd.Flags().StringArrayVar(exclude, "exclude", nil,
		"leave out what this `pattern` matches, as in .gitignore; may be repeated")
}

func (cmds fsCommands) grepCommand() *cobra.Command {
	var flags fileFlags
	var hidden, ignoreCase bool
	var include, exclude []string
	var limit int
	cmd := &cobra.Command{
		Use: "grep SANDBOX EXPRESSION [PATH]", Short: "Find lines that match a regular expression",
		Args: takesPaths(2, "EXPRESSION"),
		Long: `Find the lines that match a regular expression of Go (RE2) in a file or below a directory, by default the
working directory. Binary files are left out. Each line is printed with its path and number. Without a match,
boxfleet exits with 1.`,
		Example: "  boxfleet fs grep web 'func main' --include '**/*.go'\n  boxfleet fs grep web -i error /var/log",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []sdk.GrepOption{sdk.WithExclude(exclude...), sdk.WithInclude(include...), sdk.WithMatchLimit(limit)}
			if hidden {
				opts = append(opts, sdk.WithHidden())
			}
			if ignoreCase {
				opts = append(opts, sdk.WithIgnoreCase())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				found, err := files.Grep(ctx, pathOf(args, 2), args[1], opts...)
				if err != nil {
					return err
				}
				return cmds.showMatches(pathOf(args, 2), found)
			})
		},
	}
	flags.add(cmd)
	addExclude(cmd, &exclude)
	cmd.Flags().BoolVarP(&hidden, "all", "a", false, "search names that begin with a dot")
	cmd.Flags().BoolVarP(&ignoreCase, "ignore-case", "i", false, "match letters of either case")
	cmd.Flags().StringArrayVar(&include, "include", nil, "search only files that match this `pattern`; may be repeated")
	cmd.Flags().IntVar(&limit, "limit", protocol.DefaultFileMatches, "end the search after this `number` of matches")
	return cmd
}

func (cmds fsCommands) showMatches(path string, found *sdk.FileMatches) error {
	err := cmds.show(found, func(w io.Writer) {
		for _, m := range found.Matches {
			name := m.Path
			if name == "" {
				name = path
			}
			fmt.Fprintf(w, "%s:%d:%s\n", plainLine(name), m.Line, plainLine(string(m.Text)))
		}
	})
	if found.Stopped != "" {
		cmds.note("the search stopped early because of its %s; there may be more matches", found.Stopped)
	}
	if found.Skips > 0 {
		cmds.note("%d paths could not be searched", found.Skips)
	}
	if err == nil && len(found.Matches) == 0 {
		return exitCode{exitFailure, nil}
	}
	return err
}

func (cmds fsCommands) changesCommand() *cobra.Command {
	var flags fileFlags
	var since string
	cmd := &cobra.Command{
		Use: "changes SANDBOX [PATH]", Short: "List what changed below a directory", Args: takesPaths(1),
		Long: `List what changed below a directory since an earlier call. Each call prints a token first: pass it to the next
call with --since. Without --since, only a token is printed. A removal shows as a change of its directory.`,
		Example: "  boxfleet fs changes web /work\n  boxfleet fs changes web /work --since TOKEN",
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				return cmds.changes(ctx, files, pathOf(args, 1), since)
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&since, "since", "", "`token` of an earlier call")
	return cmd
}

// changes prints all pages of changes as one.
func (cmds fsCommands) changes(ctx context.Context, files *sdk.Files, path, since string) error {
	var all protocol.FilePage
	for next := ""; ; {
		page, err := files.Changes(ctx, path, since, sdk.WithPage(next))
		if err != nil {
			return err
		}
		if next == "" {
			all.Token = page.Token // covers all pages
		}
		for _, f := range page.Items {
			all.Files = append(all.Files, *f)
		}
		all.Skipped, all.Skips = append(all.Skipped, page.Skipped...), all.Skips+page.Skips
		if next = page.Next; next == "" {
			break
		}
	}
	return cmds.show(&all, func(w io.Writer) {
		fmt.Fprintln(w, all.Token)
		for _, f := range all.Files {
			fmt.Fprintln(w, plainLine(f.Path))
		}
	})
}

func (cmds fsCommands) watchCommand() *cobra.Command {
	var flags fileFlags
	var recursive bool
	var exclude []string
	cmd := &cobra.Command{
		Use: "watch SANDBOX [PATH]", Short: "Print changes below a directory as they happen", Args: takesPaths(1),
		Long: `Print changes below a directory as they happen, one per line, until you end it. The first line says that
changes from now on are reported. A line "rescan" says that changes are missing.`,
		Example: "  boxfleet fs watch web /work --recursive --exclude .git\n  boxfleet fs watch web -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []sdk.WatchOption{sdk.WithExclude(exclude...)}
			if recursive {
				opts = append(opts, sdk.WithRecursive())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				for e, err := range files.Watch(ctx, pathOf(args, 1), opts...) {
					if err != nil {
						return ignoreInterrupt(ctx, true, err)
					}
					if err := cmds.showEvent(e); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	flags.add(cmd)
	addExclude(cmd, &exclude)
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also watch the directories below")
	return cmd
}

func (cmds fsCommands) showEvent(e sdk.FileEvent) error {
	return cmds.show(e, func(w io.Writer) {
		line := string(e.Kind)
		if e.Path != "" {
			line += " " + plainLine(e.Path)
		}
		if e.Error != nil {
			line += ": " + plainLine(e.Error.Message)
		}
		fmt.Fprintln(w, line)
	})
}
