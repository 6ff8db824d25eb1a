package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// importFlags are the flags of `image import`.
type importFlags struct {
	ref              string
	workers, changes []string
	wait             bool
}

func (cmds imageCommands) importCommand() *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use: "import FILE|- --ref NAME[:TAG]", Short: "Import an image to the hosts without a registry",
		Long: `Import an image to the hosts without a registry. FILE is the output of docker save, a tar of an OCI image
layout, or a tar of a root filesystem, uncompressed or compressed with gzip, bzip2 or zstd. The hosts keep the
image, and hosts that join later also get it, until it is removed.`,
		Example: "  docker save tools:1 | boxfleet image import - --ref tools:1\n  boxfleet image import rootfs.tar.gz " +
			"--ref debian:mine --change 'ENV LANG=C.UTF-8'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("FILE is missing, use - for stdin; see %s --help", cmd.CommandPath())
			}
			if f.ref == "" {
				return usage("--ref is missing: the name for the image")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			content, done, err := cmds.open(args[0])
			if err != nil {
				return err
			}
			defer done()
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.importImage(ctx, c, content, f)
			})
		},
	}
	cmd.Flags().StringVar(&f.ref, "ref", "", "`NAME[:TAG]` of the image")
	cmd.Flags().StringArrayVar(&f.workers, "worker", nil,
		"import only to the host of this `worker`; may be repeated (default: all hosts)")
	cmd.Flags().StringArrayVar(&f.changes, "change", nil,
		"Dockerfile `instruction` to apply to a root filesystem; may be repeated")
	cmds.completeFlag(cmd, "worker", workerNames)
	cmd.Flags().BoolVar(&f.wait, "wait", true, "wait until the hosts have the image, not just until it is stored")
	return cmd
}

// open opens an image file. It copies stdin to a temporary file, because the import reads the image twice.
func (cmds imageCommands) open(name string) (content io.ReadSeeker, done func(), err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, usage("%v", err)
		}
		return f, func() { f.Close() }, nil
	}
	spool, err := os.CreateTemp("", "boxfleet-image-")
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.Internal, "", "copy stdin to a temporary file: %v", err)
	}
	done = func() { spool.Close() }
	os.Remove(spool.Name()) // the open file stays readable
	_, err = io.Copy(spool, cmds.stdin)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, protocol.Errorf(protocol.Internal, "", "copy stdin to a temporary file: %v", err)
	}
	return spool, done, nil
}

// importImage imports an image and shows the result for each host.
func (cmds imageCommands) importImage(ctx context.Context, c *sdk.Client, content io.ReadSeeker, f importFlags) error {
	tell, done := cmds.progressing("reading the image")
	defer done()
	want, err := c.Images().Import(ctx, f.ref, content, sdk.WithWorkers(f.workers...), sdk.WithChanges(f.changes...),
		sdk.WithProgress(func(sent, total int64) { tell("uploading the image " + bar(sent, total)) }))
	if err != nil {
		return err
	}
	if !f.wait {
		done()
		return cmds.show(want, func(w io.Writer) { fmt.Fprintf(w, "%s is stored; the hosts are importing it\n", want.Ref) })
	}
	tell("waiting for the hosts")
	hosts, err := c.Images().Wait(ctx, want, func(worker string, i protocol.HostImage) { tell(worker + ": " + i.State) })
	done()
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return cmds.show(hosts, func(w io.Writer) {
			fmt.Fprintf(w, "no host is ready; hosts that join later will import %s\n", want.Ref)
		})
	}
	failed := 0
	rows := [][]any{{"WORKER", "STATE", "IMAGE", "ERROR"}}
	for _, worker := range slices.Sorted(maps.Keys(hosts)) {
		i := hosts[worker]
		if i.State != protocol.ImageReady {
			failed++
		}
		rows = append(rows, []any{worker, stateColour(i.State), i.Ref, errorText(i.Error)})
	}
	if err := cmds.show(hosts, func(w io.Writer) { table(w, rows...) }); err != nil {
		return err
	}
	if failed > 0 {
		return protocol.Errorf(protocol.FailedPrecondition, "", "%d of %d hosts do not have the image yet; "+
			"these hosts will retry", failed, len(hosts))
	}
	return nil
}
