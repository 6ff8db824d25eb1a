package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
	"github.com/boxfleet/boxfleet/spec"
)

// createsAtOnce is how many sandboxes apply makes at a time.
const createsAtOnce = 8

// applied is what apply did with one document.
type applied struct {
	ID      string            `json:"id"`
	Result  string            `json:"result"` // created, unchanged or failed
	Sandbox *protocol.Sandbox `json:"sandbox,omitempty"`
	Error   *protocol.Error   `json:"error,omitempty"`
}

const (
	resultCreated   = "created"
	resultUnchanged = "unchanged"
	resultFailed    = "failed"
)

func (p *program) applyCommand() *cobra.Command {
	var file string
	var wait bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Make the sandboxes of a file that are not there yet", Args: takes(),
		Long: `Make the sandboxes of a file, which holds one or more documents, each with an id. Those that are there
with the same spec are left as they are, and waited for where they are not ready yet. A sandbox cannot be changed: where one is there with another
spec, or has failed or been deleted, apply names it, makes nothing, and ends with an error.`,
		Example: "  boxfleet apply -f sandboxes.yaml\n  boxfleet apply -f - -o json <sandboxes.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			documents, err := readSpecs(file, p.stdin)
			if err != nil {
				return err
			}
			if err := checkApplied(documents); err != nil {
				return err
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error { return p.apply(ctx, c, documents, wait) })
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML `file` of one or more documents, - for stdin")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until they are ready, not only accepted")
	return cmd
}

// checkApplied checks everything that can be known without the fleet.
func checkApplied(documents []*spec.Document) error {
	seen := map[string]int{}
	for i, d := range documents {
		if d.ID == "" {
			return protocol.Invalid("id", "document %d has none; apply needs one to find its sandbox again", i+1)
		}
		if before, twice := seen[d.ID]; twice {
			return protocol.Invalid("id", "documents %d and %d have the same: %s", before, i+1, d.ID)
		}
		seen[d.ID] = i + 1
		if err := check(d); err != nil {
			return err
		}
	}
	return nil
}

// apply looks at all sandboxes before it makes any.
func (p *program) apply(ctx context.Context, c *sdk.Client, documents []*spec.Document, wait bool) error {
	tell, done := p.progressing("applying")
	defer done()
	defaults, err := c.Defaults(ctx)
	if err != nil {
		return err
	}
	results, refusals := make([]applied, len(documents)), []string{}
	for i, d := range documents {
		var refusal string
		if err := upload(ctx, c, d, tell); err != nil {
			return err
		}
		if results[i], refusal, err = compare(ctx, c, d, *defaults); err != nil {
			return err
		}
		if refusal != "" {
			refusals = append(refusals, refusal)
		}
	}
	if len(refusals) > 0 {
		return protocol.Errorf(protocol.AlreadyExists, "", "nothing is changed: %s", strings.Join(refusals, "; "))
	}
	p.inHand.goesOn("apply", "the fleet goes on with it: `boxfleet sandbox list` shows how far it is; apply the file again to wait for it")
	if err = p.carryOut(ctx, c, documents, results, wait, tell); err == nil {
		p.inHand.done("apply")
	}
	done()
	return errors.Join(err, p.show(results, func(w io.Writer) {
		for _, r := range results {
			fmt.Fprintf(w, "%s %s\n", r.ID, r.Result)
		}
	}))
}

// compare looks at the sandbox of a document. A refusal says why it can be neither made nor left.
func compare(ctx context.Context, c *sdk.Client, d *spec.Document, defaults protocol.SandboxSpec) (r applied, refusal string, err error) {
	r.ID = d.ID
	box, err := c.Get(ctx, d.ID)
	if protocol.CodeOf(err) == protocol.NotFound {
		return r, "", nil
	}
	if err != nil {
		return r, "", err
	}
	info := box.Info()
	r.Result, r.Sandbox = resultUnchanged, &info
	switch info.State {
	case protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted:
		return r, fmt.Sprintf("sandbox %s is %s, and its id cannot be used again", d.ID, info.State), nil
	}
	whole := spec.Merge(defaults, d.Spec)
	whole.Resolve()
	if differs := spec.Difference(*info.AcceptedSpec(), whole); len(differs) > 0 {
		return r, fmt.Sprintf("sandbox %s is there with another %s", d.ID, strings.Join(differs, ", ")), nil
	}
	return r, "", nil
}

// carryOut makes what is not there, and waits for all, where it is to. Several fail independently;
// the error is that of the first document which has one.
func (p *program) carryOut(ctx context.Context, c *sdk.Client, documents []*spec.Document, results []applied, wait bool, tell func(string)) error {
	var group errgroup.Group
	group.SetLimit(createsAtOnce)
	failures := make([]error, len(documents))
	for i, d := range documents {
		do := create
		if r := &results[i]; r.Result == resultUnchanged {
			if !wait || r.Sandbox.State != protocol.StatePending {
				continue
			}
			do = await
		}
		group.Go(func() error {
			if wait {
				defer p.explainWait(ctx, c, d.ID, func(why string) { tell("applying, " + d.ID + " waits: " + why) })()
			}
			failures[i] = do(ctx, c, d, &results[i], wait)
			return nil
		})
	}
	_ = group.Wait() // the failures have them
	for i, err := range failures {
		if err != nil {
			e := *protocol.AsError(err)
			e.Message = "sandbox " + documents[i].ID + ": " + e.Message
			return &e
		}
	}
	return nil
}

// create makes the sandbox of a document.
func create(ctx context.Context, c *sdk.Client, d *spec.Document, r *applied, wait bool) error {
	r.Result = resultCreated
	box, err := c.Create(ctx, d.Spec, sdk.WithID(d.ID), sdk.WithRequestID(applyRequest(d)), sdk.WithWait(wait))
	return r.ended(box, err)
}

// await waits for a sandbox that somebody made, maybe an apply that was interrupted.
func await(ctx context.Context, c *sdk.Client, d *spec.Document, r *applied, _ bool) error {
	box := c.Sandbox(d.ID)
	return r.ended(box, box.WaitReady(ctx))
}

// ended notes what became of a sandbox, which is nil where nothing is known of it.
func (r *applied) ended(box *sdk.Sandbox, err error) error {
	if box != nil {
		info := box.Info()
		r.Sandbox = &info
	}
	if err != nil {
		r.Result, r.Error = resultFailed, protocol.AsError(err)
	}
	return err
}

// applyRequest is the id of the request for a document, so that two who apply the same at once ask
// for one sandbox.
func applyRequest(d *spec.Document) string {
	sum := sha256.Sum256(append([]byte(d.ID+"\n"), protocol.Encode(&d.Spec)...))
	return "apply-" + hex.EncodeToString(sum[:16])
}
