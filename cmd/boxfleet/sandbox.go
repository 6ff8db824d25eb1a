package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func (p *program) sandboxCommand() *cobra.Command {
	return group("sandbox", "Create, inspect, stop and delete sandboxes",
		p.sandboxCreate(), p.sandboxGet(), p.sandboxList("boxfleet sandbox", "list", "ls", "ps"),
		p.sandboxControl("stop", "Stop sandboxes and end their execs; they can be resumed", (*sdk.Sandbox).Stop),
		p.sandboxControl("resume", "Start stopped sandboxes again", (*sdk.Sandbox).Resume),
		p.sandboxExtend(), p.sandboxDelete("boxfleet sandbox", "delete", "rm"), p.sandboxEvents(),
		p.logsCommand("boxfleet sandbox logs"), p.sandboxExplain())
}

func (p *program) sandboxCreate() *cobra.Command {
	var flags specFlags
	var id, request string
	var wait bool
	cmd := &cobra.Command{
		Use:   "create [--image IMAGE] [-f spec.yaml] [flags] [-- COMMAND...]",
		Short: "Create a sandbox and wait until it is ready",
		Args:  takesCommand,
		Long: `Create a sandbox and wait until it is ready. If a signal or --deadline ends the wait early, the create
continues in the fleet, and boxfleet prints how to show the sandbox and how to delete it.

COMMAND is the sandbox's primary command. It should run as long as the sandbox does and is restarted when it
ends. The create fails if the command cannot be started or ends within half a second, whatever its exit code.
"boxfleet logs" prints its output. Without a COMMAND, the sandbox only runs execs.`,
		Example: `  boxfleet sandbox create --image boxfleet/demo:busybox --name web --env PORT=80 --memory 512m
  boxfleet sandbox create -f spec.yaml --label team=build --wait=false
  boxfleet sandbox create --image boxfleet/demo:busybox --service cache=redis:8 --service-env cache.TZ=UTC
  boxfleet sandbox create --image boxfleet/demo:busybox -- httpd -f -p 8080`,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, command := splitDash(cmd, args)
			d, err := flags.document(p.stdin, command)
			if err != nil {
				return err
			}
			if d.ID != "" && !cmd.Flags().Changed("id") {
				_ = cmd.Flags().Set("id", d.ID) // a string flag accepts any text
			}
			if err := checkIDs(cmd, id, request); err != nil {
				return err
			}
			opts := []sdk.CreateOption{sdk.WithWait(wait)}
			if request != "" {
				opts = append(opts, sdk.WithRequestID(request))
			}
			if d.Name != "" {
				opts = append(opts, sdk.WithName(d.Name))
			}
			if id = cmp.Or(id, request); id == "" { // chosen here, so that messages can name it when the wait ends early
				id = sdk.NewID()
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if err := p.upload(ctx, c, d); err != nil {
					return err
				}
				done := p.creating(ctx, c, id, wait)
				defer done()
				p.unfinished.set("sandbox", "the create of sandbox %s continues if it was accepted: "+
					"`boxfleet sandbox get %s` shows it, `boxfleet sandbox delete %s` deletes it", id, id, id)
				box, err := c.Create(ctx, d.Spec, append(opts, sdk.WithID(id))...)
				done()
				if err != nil {
					return p.notReady(box, err)
				}
				p.unfinished.done("sandbox")
				return p.show(box.Info(), func(w io.Writer) { fmt.Fprintln(w, box.ID()) })
			})
		},
	}
	flags.add(cmd)
	p.completeFlag(cmd, "image", imageRefs)
	cmd.Flags().StringVar(&id, "id", "",
		"id of the sandbox; an id can be used only once (default: the file's, else generated)")
	cmd.Flags().StringVar(&request, "request-id", "", "id of the request; repeating a request returns the same sandbox")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is ready, not just accepted")
	return cmd
}

// notReady extends the error of a create by the sandbox's state. box is nil if the create was not accepted.
func (p *program) notReady(box *sdk.Sandbox, err error) error {
	if box == nil {
		return err
	}
	info := box.Info()
	switch info.State {
	case protocol.StatePending:
		p.unfinished.set("sandbox",
			"sandbox %s is still pending: `boxfleet sandbox get %s` shows it, `boxfleet sandbox delete %s` deletes "+
				"it", info.ID, info.ID, info.ID)
		return err
	case protocol.StateFailed:
		p.unfinished.done("sandbox")
		e := *protocol.AsError(err)
		e.Message += fmt.Sprintf("; sandbox %s has failed: `boxfleet sandbox events %s` shows how, `boxfleet sandbox "+
			"delete %s` deletes it", info.ID, info.ID, info.ID)
		if info.Name != "" {
			e.Message += fmt.Sprintf("; the name %s can be used again", info.Name)
		}
		return &e
	}
	return err
}

// checkIDs validates --id and --request-id if they are set.
func checkIDs(cmd *cobra.Command, id, request string) error {
	if cmd.Flags().Changed("id") {
		if err := protocol.ValidateID("--id", id); err != nil {
			return err
		}
	}
	if cmd.Flags().Changed("request-id") {
		return protocol.ValidateID("--request-id", request)
	}
	return nil
}

func (p *program) sandboxGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SANDBOX", Short: "Show a sandbox and its resolved spec", Args: takes("SANDBOX"),
		ValidArgsFunction: p.completeSandbox,
		Example:           "  boxfleet sandbox get web\n  boxfleet sandbox get web -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				s, err := c.Get(ctx, args[0])
				if err != nil {
					return err
				}
				info := s.Info()
				return p.show(info, func(w io.Writer) { printSandbox(w, &info) })
			})
		},
	}
}

func printSandbox(w io.Writer, s *protocol.Sandbox) {
	rows := [][]any{{"id", s.ID}, {"state", stateColour(stateOf(s))}, {"image", s.Spec.Image},
		{"created", stamp(s.CreatedAt)},
		{"events", s.Sequence}, {"execs", fmt.Sprintf("%d running, %d in all", s.ActiveExecs, s.TotalExecs)},
		{"cpu", s.Spec.CPU}, {"memory", s.Spec.Memory}, {"pids", s.Spec.PIDs}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []any{name, value})
		}
	}
	add("name", s.Name)
	rows = append(rows, containerRows(&s.Spec)...)
	rows = append(rows, networkRows(s)...)
	rows = append(rows, serviceRows(s)...)
	if !s.ExpiresAt.IsZero() {
		add("deleted at", stamp(s.ExpiresAt))
	}
	add("digest", s.Digest)
	if p := s.Pull; p != nil {
		add("pull", fmt.Sprintf("%s, %s of %s, %d of %d layers", p.Image, p.Done, p.Total, p.LayersDone, p.Layers))
	}
	add("worker", s.Worker)
	add("isolation", s.Isolation)
	add("subnet", s.Subnet)
	add("user", s.Spec.User)
	add("cwd", s.Spec.Cwd)
	if len(s.Spec.Command) > 0 {
		add("command", fmt.Sprintf("%q", s.Spec.Command))
	}
	add("", primaryText(s.Primary))
	for _, k := range sortedKeys(s.Spec.Env) {
		add("env", k+"="+s.Spec.Env[k])
	}
	for _, k := range sortedKeys(s.Spec.Labels) {
		add("label", k+"="+s.Spec.Labels[k])
	}
	for _, m := range s.Spec.Mounts {
		mode := ", read-only"
		if m.Writable {
			mode = ", writable"
		}
		add("mount", m.Source+" at "+m.Target+mode)
	}
	for _, name := range s.Spec.Tools {
		add("tool", name)
	}
	for _, c := range s.Spec.Copies {
		if c.Service != "" {
			c.Target += " in " + c.Service
		}
		add("copy", c.Digest+" at "+c.Target)
	}
	add("reason", s.Reason)
	if s.Error != nil {
		add("error", s.Error.Error())
	}
	table(w, rows...)
}

// primaryText describes the state of a sandbox's primary command.
func primaryText(p *protocol.PrimaryStatus) string {
	if p == nil {
		return ""
	}
	text := fmt.Sprintf("%s since %s", p.State, stamp(p.Since))
	if p.Restarts > 0 {
		text += fmt.Sprintf(", restarted %d times", p.Restarts)
	}
	switch {
	case p.ExitCode != nil && p.State == protocol.PrimaryRunning:
		text += fmt.Sprintf(", previous run ended with exit code %d", *p.ExitCode)
	case p.ExitCode != nil:
		text += fmt.Sprintf(", with exit code %d", *p.ExitCode)
	}
	if p.Reason != "" {
		text += ", " + p.Reason
	}
	return text
}

func stateOf(s *protocol.Sandbox) string {
	text := string(s.State)
	if s.State == protocol.StateReady && s.Desired == protocol.StateStopped {
		text += ", stopping"
	}
	if s.Phase != "" {
		text += ", " + s.Phase
	}
	if s.Unreachable {
		text += ", unreachable"
	}
	return text
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sandboxList returns a command that lists sandboxes, for use below the given command line.
func (p *program) sandboxList(below, name string, aliases ...string) *cobra.Command {
	var labels, states []string
	var called string
	var quiet bool
	line := below + " " + name
	cmd := &cobra.Command{
		Use: name, Aliases: aliases, Short: "List sandboxes", Args: takes(),
		Example: "  " + line + " --label team=build\n  " + line + " --state deleted -o json\n  boxfleet sandbox delete " +
			"$(" + line + " -q --label team=build)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := []sdk.ListOption{sdk.WithPageSize(1000)}
			if cmd.Flags().Changed("name") {
				if err := protocol.ValidateName("--name", called); err != nil {
					return err
				}
				opts = append(opts, sdk.WithName(called))
			}
			var selector map[string]string
			if err := addPairs("--label", &selector, labels); err != nil {
				return err
			}
			selected, err := statesOf(states, sandboxStates)
			if err != nil {
				return err
			}
			opts = append(opts, sdk.WithLabels(selector), sdk.WithStates(selected...))
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error { return p.list(ctx, c, opts, quiet) })
		},
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil,
		"only sandboxes with the label `K=V`; may be repeated, all must match")
	cmd.Flags().StringVar(&called, "name", "",
		"only the live sandbox with this `name`; with --state deleted, the deleted ones that had it")
	cmd.Flags().StringSliceVar(&states, "state", nil,
		"only sandboxes in this `state`; may be repeated (default: all except deleted)")
	addQuiet(cmd, &quiet)
	completeValues(cmd, "state", namesOf(sandboxStates)...)
	return cmd
}

var sandboxStates = []protocol.SandboxState{protocol.StatePending, protocol.StateReady, protocol.StateStopped,
	protocol.StateFailed, protocol.StateDeleting, protocol.StateDeleted}

func (p *program) list(ctx context.Context, c *sdk.Client, opts []sdk.ListOption, quiet bool) error {
	found := []protocol.Sandbox{}
	for s, err := range c.List(ctx, opts...) {
		if err != nil {
			return err
		}
		found = append(found, s.Info())
	}
	if quiet {
		ids := []string{}
		for i := range found {
			ids = append(ids, found[i].ID)
		}
		return p.showNames(ids)
	}
	return p.show(found, func(w io.Writer) {
		now := c.Now(ctx)
		rows := [][]any{{"SANDBOX", "NAME", "STATE", "IMAGE", "WORKER", "EXECS", "AGE"}}
		for i := range found {
			s := &found[i]
			rows = append(rows, []any{s.ID, s.Name, stateColour(stateOf(s)), s.Spec.Image, s.Worker,
				fmt.Sprintf("%d/%d", s.ActiveExecs, s.TotalExecs), ago(now, s.CreatedAt)})
		}
		table(w, rows...)
	})
}

func (p *program) sandboxControl(verb, short string, do func(*sdk.Sandbox, context.Context,
	...sdk.ChangeOption) error) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: verb + " SANDBOX...", Short: short, Args: takesSome("SANDBOX"), ValidArgsFunction: p.completeSandboxes,
		Example: "  boxfleet sandbox " + verb + " web\n  boxfleet sandbox " + verb + " web db",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				return p.controlAll(ctx, c, verb, args, wait,
					do)
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is done, not only accepted")
	return cmd
}

func (p *program) sandboxExtend() *cobra.Command {
	return &cobra.Command{
		Use: "extend SANDBOX DURATION", Short: "Delete a sandbox this long from now, replacing its ttl",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := counts(cmd, args, "SANDBOX", "DURATION"); err != nil {
				return err
			}
			return protocol.ValidateID("SANDBOX", args[0])
		},
		ValidArgsFunction: p.completeSandbox, Example: "  boxfleet sandbox extend web 2h",
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := time.ParseDuration(args[1])
			if err != nil {
				return usage("DURATION: must be %s, got %.40q", kinds["duration"], args[1])
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				s := c.Sandbox(args[0])
				if err := s.Extend(ctx, ttl); err != nil {
					return err
				}
				return p.show(s.Info(), func(w io.Writer) { fmt.Fprintln(w, args[0]) })
			})
		},
	}
}

// sandboxDelete returns a command that deletes sandboxes, for use below the given command line.
func (p *program) sandboxDelete(below, name string, aliases ...string) *cobra.Command {
	var wait bool
	var labels []string
	cmd := &cobra.Command{
		Use: name + " SANDBOX... | --label K=V", Aliases: aliases,
		Short:             "Delete sandboxes: end their execs and remove everything except their history",
		ValidArgsFunction: p.completeSandboxes,
		Example:           "  " + below + " " + name + " web db\n  " + below + " " + name + " --label team=build",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(labels) > 0 {
				return takes()(cmd, args)
			}
			return takesSome("SANDBOX")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var selector map[string]string
			if err := addPairs("--label", &selector, labels); err != nil {
				return err
			}
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				if len(args) > 0 {
					return p.controlAll(ctx, c, "delete", args, wait, (*sdk.Sandbox).Delete)
				}
				done := p.progress("deleting sandboxes")
				defer done()
				deleted, err := c.DeleteByLabels(ctx, selector, sdk.WithWait(wait))
				done()
				ids := make([]string, len(deleted))
				for i, s := range deleted {
					ids[i] = s.ID()
				}
				slices.Sort(ids)
				showErr := p.show(ids, func(w io.Writer) {
					for _, id := range ids {
						fmt.Fprintln(w, id)
					}
				})
				if err == nil {
					err = showErr
				}
				return err
			})
		},
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil,
		"delete every sandbox with the label `K=V`; may be repeated, all must match")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is done, not only accepted")
	return cmd
}

func (p *program) sandboxEvents() *cobra.Command {
	var from uint64
	var follow bool
	cmd := &cobra.Command{
		Use: "events SANDBOX", Short: "Print the numbered history of a sandbox", Args: takes("SANDBOX"),
		ValidArgsFunction: p.completeSandbox,
		Example:           "  boxfleet sandbox events web\n  boxfleet sandbox events web --from 12 --follow -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				for e, err := range c.Sandbox(args[0]).Events(ctx, sdk.WithFrom(from), sdk.WithFollow(follow)) {
					if err != nil {
						return ignoreInterrupt(ctx, follow, err)
					}
					if err := p.show(e, func(w io.Writer) { printEvent(w, &e) }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 1, "sequence number of the first event")
	cmd.Flags().BoolVar(&follow, "follow", false, "keep printing new events until the sandbox is deleted")
	return cmd
}

// ignoreInterrupt treats Ctrl-C as the normal end of a command that follows something.
func ignoreInterrupt(ctx context.Context, follow bool, err error) error {
	if follow && ctx.Err() != nil && !overdue(ctx) {
		return nil
	}
	return err
}

func printEvent(w io.Writer, e *protocol.Event) {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if d := e.Exec; d != nil {
		note("%s", d.ID)
		if d.Spec != nil {
			note("%q", d.Spec.Command)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
		if n := d.StdoutBytes + d.StderrBytes; n > 0 {
			note("%d bytes of output", n)
		}
	}
	if d := e.Primary; d != nil {
		if d.Restarts > 0 {
			note("restart %d", d.Restarts)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
	}
	if d := e.Service; d != nil {
		note("%s", d.Name)
		if d.Hook > 0 {
			note("hook %d", d.Hook)
		}
		if d.ExitCode != nil {
			note("exit code %d", *d.ExitCode)
		}
	}
	if d := e.Phase; d != nil {
		if d.Phase != "" {
			note("%s", d.Phase)
		}
		if d.Spec != nil && e.Kind == protocol.SandboxAccepted {
			note("%s", d.Spec.Image)
		}
		if d.Worker != "" {
			note("to %s", d.Worker)
		}
		if d.Spec != nil && e.Kind == protocol.SandboxAssigned {
			note("with its defaults")
		}
		if d.Subnet != "" {
			note("%s, %s", d.Isolation, d.Subnet)
		}
	}
	if e.Reason != "" {
		note("%s", e.Reason)
	}
	if e.Error != nil {
		note("%s", e.Error.Error())
	}
	fmt.Fprintf(w, "%4d  %s  %-8s  %-26s  %s\n", e.Sequence, stamp(e.Time), e.State, e.Kind, strings.Join(notes, "  "))
}

func (p *program) sandboxExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain SANDBOX", Short: "Explain what a sandbox is waiting for and why each host rejects it",
		Args: takes("SANDBOX"), ValidArgsFunction: p.completeSandbox,
		Example: "  boxfleet sandbox explain web",
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.client(cmd, func(ctx context.Context, c *sdk.Client) error {
				x, err := c.Sandbox(args[0]).Explain(ctx)
				if err != nil {
					return err
				}
				return p.show(x, func(w io.Writer) { printExplanation(w, x) })
			})
		},
	}
}

func printExplanation(w io.Writer, x *protocol.Explanation) {
	why, idle := strings.CutPrefix(x.Waiting, "nothing")
	if idle {
		fmt.Fprintf(w, "%s is %s; it is waiting for nothing%s\n", x.Sandbox.ID, stateOf(x.Sandbox), why)
	} else {
		fmt.Fprintf(w, "%s is %s: %s\n", x.Sandbox.ID, stateOf(x.Sandbox), x.Waiting)
	}
	if !x.Since.IsZero() {
		fmt.Fprintf(w, "since %s", stamp(x.Since))
		if !x.Deadline.IsZero() {
			fmt.Fprintf(w, ", until %s", stamp(x.Deadline))
		}
		fmt.Fprintln(w)
	}
	if x.Position > 0 {
		fmt.Fprintf(w, "number %d in the queue\n", x.Position)
	}
	for _, h := range x.Hosts {
		reason := h.Reason
		if reason == "" {
			reason = "can take it"
		}
		fmt.Fprintf(w, "  %s: %s\n", h.Worker, reason)
	}
}
