package main

import (
	"cmp"
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

// createsAtOnce is how many sandboxes apply creates at a time.
const createsAtOnce = 8

// applied is the result of applying one document.
type applied struct {
	ID      string            `json:"id,omitempty"`
	Name    string            `json:"name,omitempty"`
	Result  string            `json:"result"` // one of created, unchanged, failed
	Sandbox *protocol.Sandbox `json:"sandbox,omitempty"`
	Error   *protocol.Error   `json:"error,omitempty"`
}

const (
	resultCreated   = "created"
	resultUnchanged = "unchanged"
	resultFailed    = "failed"
)

type applyCommands struct{ *client }

func (cmds applyCommands) applyCommand() *cobra.Command {
	var file string
	var wait bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create the sandboxes of a file that do not exist yet", Args: takes(),
		Long: `Create the sandboxes of a file with one or more documents, each of which has a name. If a live sandbox
has the same name and spec, apply keeps it, and waits for it if it is not ready yet. If the sandbox with the name has
failed or is deleted, apply creates a new one. A sandbox cannot be changed: if a sandbox exists with a
different spec, apply names the sandbox, creates nothing, and fails.

A document may have an id instead of a name. An id can be used only once: when the sandbox with this id has failed
or is deleted, apply does not create another.`,
		Example: "  boxfleet apply -f sandboxes.yaml\n  boxfleet apply -f - -o json <sandboxes.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			documents, err := readSpecs(file, cmds.stdin)
			if err != nil {
				return err
			}
			if err := checkApplied(documents); err != nil {
				return err
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return cmds.apply(ctx, c, documents, wait)
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML `file` of one or more documents, - for stdin")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the sandboxes are ready, not just accepted")
	return cmd
}

// checkApplied makes all checks that do not need the fleet.
func checkApplied(documents []*spec.Document) error {
	seen := map[string]int{}
	for i, d := range documents {
		field, ref := "name", d.Name
		switch {
		case d.ID != "" && d.Name != "":
			return protocol.Invalid("id",
				"document %d also has a name, by which apply finds its sandbox; remove the id, which can be used only once", i+1)
		case d.ID != "":
			field, ref = "id", d.ID
		case ref == "":
			return protocol.Invalid("name", "document %d has no name; apply needs a name to find the sandbox again", i+1)
		}
		if before, twice := seen[ref]; twice {
			return protocol.Invalid(field, "documents %d and %d have the same value: %s", before, i+1, ref)
		}
		seen[ref] = i + 1
		if err := check(d); err != nil {
			return err
		}
	}
	return nil
}

// apply compares every document with the sandboxes of the fleet before it creates the first sandbox.
func (cmds applyCommands) apply(ctx context.Context, c *sdk.Client, documents []*spec.Document, wait bool) error {
	tell, done := cmds.progressing("applying")
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
		return protocol.Errorf(protocol.AlreadyExists, "", "nothing was changed: %s", strings.Join(refusals, "; "))
	}
	cmds.unfinished.set("apply",
		"the request continues: `boxfleet sandbox list` shows its progress; apply the file again to wait for it")
	if err = cmds.carryOut(ctx, c, documents, results, wait, tell); err == nil {
		cmds.unfinished.done("apply")
	}
	done()
	return errors.Join(err, cmds.show(results, func(w io.Writer) {
		for _, r := range results {
			fmt.Fprintf(w, "%s %s\n", cmp.Or(r.Name, r.ID), r.Result)
		}
	}))
}

// compare compares a document with its sandbox. If apply can neither create the sandbox nor keep it, refusal says why.
func compare(ctx context.Context, c *sdk.Client, d *spec.Document, defaults protocol.SandboxSpec) (r applied,
	refusal string, err error) {
	r.ID, r.Name = d.ID, d.Name
	box, err := c.Get(ctx, called(d))
	if protocol.CodeOf(err) == protocol.NotFound {
		return r, "", nil
	}
	if err != nil {
		return r, "", err
	}
	info := box.Info()
	switch {
	case d.Name != "" && info.Name != d.Name:
		return r, fmt.Sprintf("%s is the id of a sandbox and cannot be used as a name", d.Name), nil
	case d.Name != "" && !info.State.ReservesName():
		return r, "", nil
	}
	r.ID, r.Result, r.Sandbox = info.ID, resultUnchanged, &info
	if !info.State.ReservesName() {
		return r, fmt.Sprintf("sandbox %s is %s and its id cannot be used again", d.ID, info.State), nil
	}
	whole := spec.Merge(defaults, d.Spec)
	whole.Resolve()
	if differs := spec.Difference(*info.AcceptedSpec(), whole); len(differs) > 0 {
		return r, fmt.Sprintf("sandbox %s exists with a different %s", called(d), strings.Join(differs, ", ")), nil
	}
	return r, "", nil
}

// carryOut creates the missing sandboxes and, if wait is true, waits until all sandboxes are ready. If one document
// fails, it continues with the others, and it returns the error of the first document that failed.
func (cmds applyCommands) carryOut(
	ctx context.Context, c *sdk.Client, documents []*spec.Document, results []applied, wait bool, tell func(string),
) error {
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
				defer cmds.explainWait(ctx, c, called(d),
					func(why string) { tell("applying, " + called(d) + " is waiting: " + why) })()
			}
			failures[i] = do(ctx, c, d, &results[i], wait)
			return nil
		})
	}
	_ = group.Wait() // the goroutines store their errors in failures
	for i, err := range failures {
		if err != nil {
			e := *protocol.AsError(err)
			e.Message = "sandbox " + called(documents[i]) + ": " + e.Message
			return &e
		}
	}
	return nil
}

// create creates the sandbox of a document.
func create(ctx context.Context, c *sdk.Client, d *spec.Document, r *applied, wait bool) error {
	r.Result = resultCreated
	sealed, err := c.SealDocument(ctx, d)
	if err != nil {
		return r.ended(nil, err)
	}
	if d.Name == "" {
		box, err := c.Create(ctx, sealed, sdk.WithID(d.ID), sdk.WithRequestID(applyRequest(d)), sdk.WithWait(wait))
		return r.ended(box, err)
	}
	box, err := c.Create(ctx, sealed, sdk.WithName(d.Name), sdk.WithWait(wait))
	if err == nil || protocol.AsError(err).Reason != protocol.ReasonNameTaken {
		return r.ended(box, err)
	}
	// Another client created the sandbox first, perhaps from the same file.
	defaults, defaultsErr := c.Defaults(ctx)
	if defaultsErr != nil {
		return r.ended(nil, defaultsErr)
	}
	found, refusal, compareErr := compare(ctx, c, d, *defaults)
	switch {
	case compareErr != nil:
		return r.ended(nil, compareErr)
	case refusal != "":
		return r.ended(nil, protocol.Errorf(protocol.AlreadyExists, protocol.ReasonNameTaken, "%s", refusal))
	case found.Sandbox == nil: // the sandbox of the other client has ended already
		return r.ended(nil, err)
	}
	if *r = found; wait && r.Sandbox.State == protocol.StatePending {
		return await(ctx, c, d, r, wait)
	}
	return nil
}

// await waits for a sandbox that exists already. An interrupted apply may have created the sandbox.
func await(ctx context.Context, c *sdk.Client, d *spec.Document, r *applied, _ bool) error {
	box := c.Sandbox(r.ID)
	return r.ended(box, box.WaitReady(ctx))
}

// ended records the outcome of a document. box is nil if the sandbox's state is unknown.
func (r *applied) ended(box *sdk.Sandbox, err error) error {
	if box != nil {
		info := box.Info()
		r.ID, r.Sandbox = info.ID, &info
	}
	if err != nil {
		r.Result, r.Error = resultFailed, protocol.AsError(err)
	}
	return err
}

// called returns the name or id by which apply finds a document's sandbox.
func called(d *spec.Document) string { return cmp.Or(d.Name, d.ID) }

// applyRequest derives the request id from a document. If two clients apply the same document at the same time, they
// then share one sandbox.
func applyRequest(d *spec.Document) string {
	sum := sha256.Sum256(append([]byte(d.ID+"\n"), protocol.Encode(&d.Spec)...))
	return "apply-" + hex.EncodeToString(sum[:16])
}
