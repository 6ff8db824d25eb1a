package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/doctor"
	"github.com/boxfleet/boxfleet/jetstream"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
	"github.com/boxfleet/boxfleet/sdk"
)

type doctorCommands struct{ *client }

func (cmds doctorCommands) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say what is wrong with the fleet, and what to do about it", Args: takes(),
		Long: `Examine the fleet: who you are and what you may do, NATS and how safely it stores data, coordinators, clocks,
versions, each host with its engine, isolation, disk and lock, and work that is late. For each finding, doctor prints
what is wrong and what to do. docs/doctor.md lists all findings.

The exit code is 0 without warnings and errors, 3 if the worst finding is a warning, and 4 if it is an error. Users and
viewers of a tenant see less than operators; coordinators and workers may not run doctor.`,
		Example: "  boxfleet doctor\n  boxfleet doctor -o json | jq -r '.findings[] | .code'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts := doctor.Facts{Version: version, Wall: time.Now()}
			var err error
			if facts.You, err = cmds.you(); err != nil {
				return err
			}
			if err := cmds.examineCertificates(cmd.Context(), &facts); err != nil {
				return err
			}
			err = cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				facts.You.Tenant = c.Tenant()
				cmds.gather(ctx, c, &facts)
				return cmd.Context().Err()
			})
			if cmd.Context().Err() != nil || protocol.CodeOf(err) == protocol.InvalidArgument {
				return err
			}
			facts.NotConnected = protocol.AsError(err)
			return cmds.report(doctor.Examine(facts))
		},
	}
}

// you returns who the client is, as far as its configuration says.
func (cmds doctorCommands) you() (doctor.You, error) {
	where, err := cmds.config.whereNATS()
	if err != nil {
		return doctor.You{}, err
	}
	you := doctor.You{Login: doctor.LoginNone, Name: cmds.config.NATSUser}
	_, login, _ := jetstream.SplitLogin(where.URL)
	switch user := cmp.Or(login.User, where.Login.User); {
	case user != "":
		you.Login, you.Name = doctor.LoginPassword, cmp.Or(you.Name, user)
	case where.NKey != "":
		you.Login = doctor.LoginNKey
	case login.Token+where.Token+where.Login.TokenFile != "":
		you.Login = doctor.LoginToken
	}
	if where.Creds == "" {
		return you, nil
	}
	text, err := os.ReadFile(where.Creds)
	if err != nil {
		return you, nil // the attempt to connect reports the error
	}
	defer clear(text)
	you.Login = doctor.LoginCredentials
	you.Issued, you.Expires = rights.Life(text)
	if id, ok := rights.FromCredentials(text); ok {
		you.Role, you.Name, you.May = id.Role, id.Name, doctor.MayOf(id.Role)
	}
	return you, nil
}

// examineCertificates reads the certificates of the NATS servers and of the client.
func (cmds doctorCommands) examineCertificates(ctx context.Context, f *doctor.Facts) error {
	where, err := cmds.config.whereNATS()
	if err != nil {
		return err
	}
	if own := cmds.config.TLS.Own(); own != nil {
		f.Own = (*doctor.Certificate)(own)
	}
	for _, c := range cmds.config.TLS.Certificates(ctx, cmp.Or(where.URL, sdk.DefaultURL)) {
		f.Servers = append(f.Servers, doctor.Certificate(c))
	}
	return nil
}

// gather asks the fleet for facts, and waits at most pingWithin for each answer.
func (cmds doctorCommands) gather(ctx context.Context, c *sdk.Client, f *doctor.Facts) {
	ask := func(question func(ctx context.Context) error) *protocol.Error {
		bounded, cancel := context.WithTimeout(ctx, pingWithin)
		defer cancel()
		return protocol.AsError(cmds.ended(ctx, question(bounded)))
	}
	began := time.Now()
	f.NoPing = ask(func(ctx context.Context) (err error) { f.Ping, err = c.Ping(ctx); return err })
	if f.NoPing != nil {
		return
	}
	f.Skew = ahead(began, time.Now(), f.Ping.Time)
	var asked sync.WaitGroup
	asked.Go(func() {
		f.NoCheckup = ask(func(ctx context.Context) (err error) { f.Checkup, err = c.Checkup(ctx); return err })
	})
	asked.Go(func() {
		f.NoHosts = ask(func(ctx context.Context) (err error) { f.Hosts, err = sdk.ReadAll(c.Hosts().List(ctx)); return err })
	})
	if role := f.You.Role; role != "" && role != rights.Operator {
		f.NoCoordinators = protocol.Errorf(protocol.PermissionDenied, "", "only operators may ask all coordinators")
	} else {
		f.NoCoordinators = ask(func(ctx context.Context) (err error) {
			f.Coordinators, err = c.Coordinators(ctx)
			return err
		})
	}
	asked.Wait()
}

// ahead compares this machine's clock with another clock, which was read between began and ended. It returns the least
// possible difference: positive if this machine's clock is ahead, negative if it is behind, 0 if the clocks may agree.
func ahead(began, ended, read time.Time) time.Duration {
	switch {
	case read.Before(began.Round(0)):
		return began.Round(0).Sub(read)
	case read.After(ended.Round(0)):
		return ended.Round(0).Sub(read)
	}
	return 0
}

// report prints a report, and returns the exit code that belongs to its worst finding.
func (cmds doctorCommands) report(r doctor.Report) error {
	for i := range r.Findings {
		r.Findings[i].Problem = cmds.config.redacted(r.Findings[i].Problem)
	}
	if err := cmds.show(r, func(w io.Writer) { printExamination(w, r) }); err != nil {
		return err
	}
	switch r.Worst {
	case doctor.Error:
		return exitCode{exitErrors, nil}
	case doctor.Warning:
		return exitCode{exitWarnings, nil}
	}
	return nil
}

func printExamination(w io.Writer, r doctor.Report) {
	rows := [][]any{{"you", youText(r.You)}, {"may", mayText(r.You)}}
	if f := r.Fleet; f != nil {
		rows = append(rows, []any{"fleet", fmt.Sprintf("deployment %s, coordinator %s %s answers", f.Deployment,
			f.AnsweredBy.Name, f.AnsweredBy.Version)})
		if f.Coordinators != nil {
			names := make([]string, len(f.Coordinators))
			for i, c := range f.Coordinators {
				names[i] = c.Name + " " + c.Version
			}
			rows = append(rows, []any{"coordinators", strings.Join(names, ", ")})
		}
		if f.Server != "" {
			rows = append(rows, []any{"nats", fmt.Sprintf("%s, messages of up to %s", f.Server, f.MaxPayload)})
		}
		limit := ""
		if f.StoreMax > 0 {
			limit = " of " + f.StoreMax.String()
		}
		rows = append(rows, []any{"hosts", tally(f.Hosts)}, []any{"workers", tally(f.Workers)},
			[]any{"engines", tally(f.Engines)}, []any{"durability", string(f.Class) + ": " + f.Durability},
			[]any{"store", f.Stored.String() + limit + " used"})
	}
	table(w, rows...)
	printFindings(w, r.Findings)
}

// mostShown limits a report for people: it shows at most this many findings with one code, and this many kinds of
// hosts.
const mostShown = 10

func printFindings(w io.Writer, findings []doctor.Finding) {
	if len(findings) == 0 {
		fmt.Fprintln(w, "\nall is well")
		return
	}
	severities, codes := map[doctor.Severity]int{}, map[doctor.Code]int{}
	for _, found := range findings {
		codes[found.Code]++
	}
	shown := map[doctor.Code]int{}
	for _, found := range findings {
		if severities[found.Severity]++; severities[found.Severity] == 1 {
			fmt.Fprintf(w, "\n%s\n", strings.ToUpper(string(found.Severity)))
		}
		switch shown[found.Code]++; {
		case shown[found.Code] <= mostShown:
			fmt.Fprintf(w, "  %s: %s\n    do: %s\n", found.Code, plainLine(found.Problem), plainLine(found.Do))
		case shown[found.Code] == mostShown+1:
			fmt.Fprintf(w, "  %s: %d more like these; boxfleet doctor -o json lists all\n", found.Code,
				codes[found.Code]-mostShown)
		}
	}
	fmt.Fprintf(w, "\nerrors: %d, warnings: %d, notes: %d\n", severities[doctor.Error], severities[doctor.Warning],
		severities[doctor.Note])
}

// youText says who the client is.
func youText(you doctor.You) string {
	text := "nobody that the credentials name, with " + you.Login
	if you.Role != "" {
		text = fmt.Sprintf("%s %s", you.Role, you.Name)
	} else if you.Name != "" {
		text = fmt.Sprintf("%s, with %s", you.Name, you.Login)
	}
	if you.Tenant != "" {
		text += ", in tenant " + you.Tenant
	}
	switch {
	case you.Login != doctor.LoginCredentials:
	case you.Expires.IsZero():
		text += "; the credentials never expire"
	default:
		text += "; the credentials expire on " + you.Expires.Format(time.RFC3339)
	}
	return text
}

// mayText says in a few words what a role may do.
func mayText(you doctor.You) string {
	switch you.Role {
	case rights.User:
		return "read, follow, and send requests and uploads, in this tenant"
	case rights.Viewer:
		return "read and follow, in this tenant"
	case rights.FleetViewer:
		return "read and follow, in every tenant"
	case rights.Operator:
		return "everything that users may, in every tenant; control hosts, images and storage"
	case rights.Coordinator, rights.Worker:
		return "run a " + string(you.Role) + ", and little else"
	}
	return "what the NATS server permits"
}

// tally lists the number of each kind, the most frequent kind first.
func tally(of map[string]int) string {
	if len(of) == 0 {
		return "none"
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, name := range names[:min(len(names), mostShown)] {
		parts = append(parts, fmt.Sprintf("%d %s", of[name], name))
	}
	if more := len(names) - mostShown; more > 0 {
		parts = append(parts, fmt.Sprintf("%d other kinds", more))
	}
	return strings.Join(parts, ", ")
}
