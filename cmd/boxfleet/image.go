package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (p *program) imageCommand() *cobra.Command {
	return group("image", "List, import and remove the images of the hosts", p.imageImport(), p.imageList(),
		p.imageRemove())
}

// importFlags are the flags of `image import`.
type importFlags struct {
	ref              string
	workers, changes []string
	wait             bool
}

func (p *program) imageImport() *cobra.Command {
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
			content, done, err := p.imageFile(args[0])
			if err != nil {
				return err
			}
			defer done()
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error { return p.importImage(ctx, c, content, f) })
		},
	}
	cmd.Flags().StringVar(&f.ref, "ref", "", "`NAME[:TAG]` of the image")
	cmd.Flags().StringArrayVar(&f.workers, "worker", nil,
		"import only to the host of this `worker`; may be repeated (default: all hosts)")
	cmd.Flags().StringArrayVar(&f.changes, "change", nil,
		"Dockerfile `instruction` to apply to a root filesystem; may be repeated")
	p.completeFlag(cmd, "worker", workerNames)
	cmd.Flags().BoolVar(&f.wait, "wait", true, "wait until the hosts have it, not just until it is stored")
	return cmd
}

// imageFile opens an image file. It copies stdin to a temporary file, because the import reads the image twice.
func (p *program) imageFile(name string) (content io.ReadSeeker, done func(), err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, usage("%v", err)
		}
		return f, func() { f.Close() }, nil
	}
	spool, err := os.CreateTemp("", "boxfleet-image-")
	if err != nil {
		return nil, nil, protocol.Errorf(protocol.Internal, "", "keep what comes on stdin: %v", err)
	}
	done = func() { spool.Close() }
	os.Remove(spool.Name()) // the open file stays readable
	_, err = io.Copy(spool, p.stdin)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, protocol.Errorf(protocol.Internal, "", "keep what comes on stdin: %v", err)
	}
	return spool, done, nil
}

// importImage imports an image and shows the result for each host.
func (p *program) importImage(ctx context.Context, c *sdk.Client, content io.ReadSeeker, f importFlags) error {
	tell, done := p.progressing("reading the image")
	defer done()
	want, err := c.Images().Import(ctx, f.ref, content, sdk.WithWorkers(f.workers...), sdk.WithChanges(f.changes...),
		sdk.WithProgress(func(sent, total int64) { tell("uploading the image " + bar(sent, total)) }))
	if err != nil {
		return err
	}
	if !f.wait {
		done()
		return p.show(want, func(w io.Writer) { fmt.Fprintf(w, "%s is stored; the hosts are importing it\n", want.Ref) })
	}
	tell("waiting for the hosts")
	hosts, err := c.Images().Wait(ctx, want, func(worker string, i protocol.HostImage) { tell(worker + ": " + i.State) })
	done()
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return p.show(hosts, func(w io.Writer) {
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
	if err := p.show(hosts, func(w io.Writer) { table(w, rows...) }); err != nil {
		return err
	}
	if failed > 0 {
		return protocol.Errorf(protocol.FailedPrecondition, "", "%d of %d hosts do not have the image yet; they will retry",
			failed, len(hosts))
	}
	return nil
}

func errorText(err *protocol.Error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (p *program) imageList() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images that the workers manage, by host", Args: takes(),
		Example: "  boxfleet image list",
		Long: "List the images that the workers manage, by host: the ones they pulled and the imported " +
			"ones.\nBoxfleet neither lists nor changes other images on a host.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if quiet {
					refs, err := imageRefs(ctx, c)
					if err != nil {
						return err
					}
					return p.showNames(refs)
				}
				imported, err := sdk.ReadAll(c.Images().List(ctx))
				if err != nil {
					return err
				}
				hosts, err := sdk.ReadAll(c.Images().OnHosts(ctx))
				if err != nil {
					return err
				}
				all := struct {
					Imported []*protocol.WantedImage `json:"imported"`
					Hosts    []*protocol.HostImages  `json:"hosts"`
				}{imported, hosts}
				return p.show(all, func(w io.Writer) { printImages(w, c.Now(ctx), imported, hosts) })
			})
		},
	}
	addQuiet(cmd, &quiet)
	return cmd
}

func printImages(w io.Writer, now time.Time, imported []*protocol.WantedImage, hosts []*protocol.HostImages) {
	rows := [][]any{{"WORKER", "IMAGE", "ORIGIN", "STATE", "SIZE", "ID", "USED", "ERROR"}}
	listed := map[string]bool{}
	for _, h := range hosts {
		for _, i := range h.Images {
			listed[i.Ref] = true
			rows = append(rows, []any{h.Worker, i.Ref, i.Origin, stateColour(i.State), i.Size, shortID(i.ID), ago(now, i.UsedAt),
				errorText(i.Error)})
		}
	}
	for _, want := range imported {
		if !listed[want.Ref] { // no host has it yet
			rows = append(rows, []any{"-", want.Ref, protocol.ImageImported, "wanted", want.Size, "", "-", ""})
		}
	}
	table(w, rows...)
}

// shortID shortens an image id as docker does.
func shortID(id string) string {
	const prefix = len("sha256:")
	if len(id) < prefix+12 {
		return id
	}
	return id[prefix : prefix+12]
}

func (p *program) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME[:TAG]", Aliases: []string{"rm"}, ValidArgsFunction: p.completeImported,
		Short: "Remove an imported image from the hosts once nothing uses it", Example: "  boxfleet image remove tools:1",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("NAME is missing; see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := c.Images().Remove(ctx, args[0]); err != nil {
					return err
				}
				removed := struct {
					Ref string `json:"ref"`
				}{args[0]}
				return p.show(removed, func(w io.Writer) { fmt.Fprintln(w, removed.Ref) })
			})
		},
	}
}
