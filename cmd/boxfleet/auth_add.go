package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/auth"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/rights"
)

func (cmds authCommands) addCommand() *cobra.Command {
	var host, file string
	var expires time.Duration
	var again bool
	h := &holder{}
	cmd := &cobra.Command{
		Use: "add ROLE NAME", Short: "Make credentials", Args: takes("ROLE", "NAME"), ValidArgsFunction: roleNames,
		Long: `Make credentials for one process or person, in a file that only its owner can read. The file is the only copy
of the secret key. NATS servers accept the credentials at once.

ROLE is coordinator, worker, user, viewer, fleet-viewer or operator. A worker needs --host with the ID of its Docker
host; a worker logs this ID when it starts. A user or viewer needs --tenant. A coordinator or worker must run under
NAME.`,
		Example: "  boxfleet auth add worker w1 --host EUJWVNGE5TFI6JAATMATQMD76O\n" +
			"  boxfleet auth add user anna --tenant blue --expires 720h --file anna.creds",
	}
	a := cmds.authority(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		opened, err := a.open()
		if err != nil {
			return err
		}
		id := rights.Identity{Role: rights.Role(args[0]), Name: args[1], Tenant: h.tenant, Host: host}
		if err := id.Validate(); err != nil {
			return err
		}
		if file == "" {
			file = credentialsFile(id)
		}
		return cmds.add(opened, id, auth.IssueOptions{Life: expires, Again: again}, file)
	}
	h.addTenant(cmd)
	cmd.Flags().StringVar(&host, "host", "", "`ID` of the worker's Docker host; required for a worker")
	cmd.Flags().DurationVar(&expires, "expires", 0,
		"how long the credentials are accepted, such as 720h (default: forever)")
	cmd.Flags().BoolVar(&again, "again", false,
		"make further credentials even if there are valid ones; the valid ones stay valid")
	cmd.Flags().StringVar(&file, "file", "",
		"new `file` for the credentials; - for stdout (default: ROLE-NAME.creds or ROLE-TENANT-NAME.creds)")
	return cmd
}

func credentialsFile(id rights.Identity) string {
	parts := []string{string(id.Role), id.Name}
	if id.Tenant != "" {
		parts = []string{string(id.Role), id.Tenant, id.Name}
	}
	return strings.Join(parts, "-") + ".creds"
}

// add makes credentials and writes them into a new file. It creates the file first: if add signed the credentials first
// and then could not create the file, valid credentials would exist that nobody has.
func (cmds authCommands) add(a *auth.Authority, id rights.Identity, o auth.IssueOptions, file string) error {
	out := io.WriteCloser(nopCloser{cmds.stdout})
	if file != "-" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			e := protocol.Errorf(protocol.AlreadyExists, "", "%s exists; choose another file", file)
			e.Field = "--file"
			return e
		}
		if err != nil {
			return protocol.Invalid("--file", "%v", err)
		}
		out = f
	}
	c, err := a.Issue(id, o)
	if err == nil {
		if _, err = out.Write(c.Text); err != nil {
			_, revoked := a.Revoke(c.Identity())
			err = errors.Join(fmt.Errorf("the credentials could not be written: %w", err), revoked)
		}
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		if file != "-" {
			err = errors.Join(err, os.Remove(file))
		}
		return err
	}
	if file == "-" {
		return nil
	}
	if cmds.json() {
		return cmds.line(struct {
			auth.Issued
			File string `json:"file"`
		}{c.Issued, file})
	}
	cmds.say("made credentials for %s: %s", describe(&c.Issued), file)
	return nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
