package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/sdk"
)

// writeFlags are the flags of `boxfleet fs write`.
type writeFlags struct {
	fileFlags
	file, mode, owner     string
	parents, atEnd, isNew bool
}

func (f *writeFlags) options(cmd *cobra.Command) ([]sdk.WriteFileOption, error) {
	opts := []sdk.WriteFileOption{sdk.WithOwner(f.owner)}
	if cmd.Flags().Changed("mode") {
		mode, err := modeOf(f.mode)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sdk.WithMode(mode))
	}
	if f.parents {
		opts = append(opts, sdk.WithParents())
	}
	switch {
	case f.atEnd && f.isNew:
		return nil, usage("--append and --new exclude each other")
	case f.atEnd:
		opts = append(opts, sdk.WithAppend())
	case f.isNew:
		opts = append(opts, sdk.WithNew())
	}
	return opts, nil
}

func (cmds fsCommands) writeCommand() *cobra.Command {
	var f writeFlags
	cmd := &cobra.Command{
		Use: "write SANDBOX PATH", Short: "Write a file from stdin", Args: takesPaths(1, "PATH"),
		Long: `Write a file from stdin or FILE. The file appears when it is complete, and replaces an existing file. If stdin
is cut off, nothing changes. With --append, bytes are added as they arrive.`,
		Example: "  echo hello | boxfleet fs write web /work/note.txt -p\n" +
			"  boxfleet fs write web run.sh --file run.sh --mode 755",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := f.options(cmd)
			if err != nil {
				return err
			}
			in := cmds.stdin
			if f.file != "-" {
				file, err := os.Open(f.file)
				if err != nil {
					return usage("--file: %v", err)
				}
				defer file.Close()
				in = file
			}
			return cmds.run(cmd, &f.fileFlags, args[0], func(ctx context.Context, files *sdk.Files) error {
				return cmds.showFile(files.Write(ctx, args[1], in, opts...))
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&f.file, "file", "f", "-", "`file` with the content, - for stdin")
	cmd.Flags().StringVarP(&f.mode, "mode", "m", "", "permissions in `octal` (default: the old file's, or 644)")
	cmd.Flags().StringVar(&f.owner, "owner", "", "`uid[:gid]` of the file (default: --user)")
	cmd.Flags().BoolVarP(&f.parents, "parents", "p", false, "create missing directories")
	cmd.Flags().BoolVar(&f.atEnd, "append", false, "write at the end of the file")
	cmd.Flags().BoolVar(&f.isNew, "new", false, "refuse to replace a file")
	return cmd
}

// showFile shows what a path is after an operation.
func (cmds fsCommands) showFile(info *sdk.FileInfo, err error) error {
	if err != nil {
		return err
	}
	return cmds.show(info, func(w io.Writer) { fmt.Fprintln(w, plainLine(info.Path)) })
}

func (cmds fsCommands) editCommand() *cobra.Command {
	var flags fileFlags
	var old, replacement string
	var all bool
	cmd := &cobra.Command{
		Use: "edit SANDBOX PATH --old TEXT --new TEXT", Short: "Replace a text in a file", Args: takesPaths(1, "PATH"),
		Long: `Replace a text in a file, at once. The old text must match exactly, and only once unless --all is given.`,
		Example: "  boxfleet fs edit web main.go --old 'port = 80' --new 'port = 8080'\n" +
			"  boxfleet fs edit web main.go --old $'a\\n' --new '' --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("old") || !cmd.Flags().Changed("new") {
				return usage("--old and --new are required")
			}
			var opts []sdk.EditOption
			if all {
				opts = append(opts, sdk.WithAll())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				done, err := files.Edit(ctx, args[1], []byte(old), []byte(replacement), opts...)
				if err != nil {
					return err
				}
				return cmds.show(done, func(w io.Writer) { fmt.Fprintf(w, "%d replaced\n", done.Replaced) })
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&old, "old", "", "the `text` to replace")
	cmd.Flags().StringVar(&replacement, "new", "", "the new `text`, which may be empty")
	cmd.Flags().BoolVar(&all, "all", false, "replace each occurrence")
	return cmd
}

func (cmds fsCommands) mkdirCommand() *cobra.Command {
	var flags fileFlags
	var mode, owner string
	var parents bool
	cmd := &cobra.Command{
		Use: "mkdir SANDBOX PATH...", Short: "Create directories", Args: takesPaths(-1, "PATH"),
		Long: `Create directories. With --parents, missing directories above are created, too, and existing ones are
accepted.`,
		Example: "  boxfleet fs mkdir web /work/a/b -p --mode 700",
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []sdk.MkdirOption{sdk.WithOwner(owner)}
			if cmd.Flags().Changed("mode") {
				bits, err := modeOf(mode)
				if err != nil {
					return err
				}
				opts = append(opts, sdk.WithMode(bits))
			}
			if parents {
				opts = append(opts, sdk.WithParents())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				for _, path := range args[1:] {
					if err := cmds.showFile(files.Mkdir(ctx, path, opts...)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVarP(&mode, "mode", "m", "", "permissions in `octal` (default: 755)")
	cmd.Flags().StringVar(&owner, "owner", "", "`uid[:gid]` of the directory (default: --user)")
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "create missing directories above")
	return cmd
}

func (cmds fsCommands) mvCommand() *cobra.Command {
	var flags fileFlags
	var force bool
	cmd := &cobra.Command{
		Use: "mv SANDBOX FROM TO", Short: "Rename a file or a directory", Args: takesPaths(2, "FROM", "TO"),
		Long:    `Rename a file or a directory. TO is the new path, not a directory to move into.`,
		Example: "  boxfleet fs mv web draft.txt final.txt --overwrite",
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts []sdk.MoveOption
			if force {
				opts = append(opts, sdk.WithOverwrite())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				return cmds.showFile(files.Move(ctx, args[1], args[2], opts...))
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&force, "overwrite", false, "replace a file or an empty directory")
	return cmd
}

// copyCommand returns `boxfleet fs cp`, which copies within a sandbox.
func (cmds fsCommands) copyCommand() *cobra.Command {
	var flags fileFlags
	var force, recursive bool
	cmd := &cobra.Command{
		Use: "cp SANDBOX FROM TO", Short: "Copy within a sandbox", Args: takesPaths(2, "FROM", "TO"),
		Long: `Copy a file or, with --recursive, a directory within a sandbox. TO is the path of the copy. Links stay
links.`,
		Example: "  boxfleet fs cp web src /backup/src -r",
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts []sdk.CopyOption
			if force {
				opts = append(opts, sdk.WithOverwrite())
			}
			if recursive {
				opts = append(opts, sdk.WithRecursive())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				count, err := files.Copy(ctx, args[1], args[2], opts...)
				if err != nil {
					return err
				}
				return cmds.finished(count)
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&force, "overwrite", false, "replace files that exist")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy directories")
	return cmd
}

func (cmds fsCommands) rmCommand() *cobra.Command {
	var flags fileFlags
	var force, recursive bool
	cmd := &cobra.Command{
		Use: "rm SANDBOX PATH...", Short: "Remove files and directories", Args: takesPaths(-1, "PATH"),
		Long: `Remove files, empty directories or, with --recursive, directories with their content. Links are removed
themselves. With --force, a path that does not exist is accepted.`,
		Example: "  boxfleet fs rm web /work/out -r -f",
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts []sdk.RemoveOption
			if force {
				opts = append(opts, sdk.WithMissing())
			}
			if recursive {
				opts = append(opts, sdk.WithRecursive())
			}
			return cmds.run(cmd, &flags, args[0], func(ctx context.Context, files *sdk.Files) error {
				for _, path := range args[1:] {
					count, err := files.Remove(ctx, path, opts...)
					if err == nil {
						err = cmds.finished(count)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "accept that a path does not exist")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with their content")
	return cmd
}
