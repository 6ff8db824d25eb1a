package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxfleet/boxfleet/evidence"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// verification is one call of `boxfleet sandbox verify`.
type verification struct {
	sandboxCommands
	save, file   string
	checksOutput bool
}

func (cmds sandboxCommands) verifyCommand() *cobra.Command {
	v := &verification{sandboxCommands: cmds}
	cmd := &cobra.Command{
		Use: "verify SANDBOX", Short: "Check who wrote the history of a sandbox, by its signatures",
		Long: `Check the signature, the writer and the place of each stored message of a sandbox's history. The exit code
is 1 if a message is refused or missing. With --file, check saved evidence, without a connection.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if v.file != "" {
				return takes()(cmd, args)
			}
			return takes("SANDBOX")(cmd, args)
		},
		ValidArgsFunction: cmds.completeSandbox,
		Example: "  boxfleet sandbox verify web --check-output\n  boxfleet sandbox verify web --save web.evidence\n" +
			"  boxfleet sandbox verify --file web.evidence",
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.file != "" && (v.save != "" || v.checksOutput) {
				return usage("--file cannot be combined with --save or --check-output: they need the stored history")
			}
			if v.file != "" {
				return v.saved()
			}
			return cmds.withFleet(cmd, func(ctx context.Context, c *sdk.Client) error {
				return v.stored(ctx, c.Sandbox(args[0]))
			})
		},
	}
	cmd.Flags().StringVar(&v.save, "save", "", "write the evidence to this new `file`, to check it elsewhere or later")
	cmd.Flags().StringVar(&v.file, "file", "", "check the evidence in this `file`")
	cmd.Flags().BoolVar(&v.checksOutput, "check-output", false,
		"also read the stored output of all execs and check its SHA-256")
	return cmd
}

// saved checks the evidence in a file.
func (v *verification) saved() error {
	data, err := readEvidence(v.file)
	if err != nil {
		return err
	}
	e, err := evidence.Parse(data)
	if err != nil {
		return err
	}
	return v.report(evidence.Check(e))
}

// evidenceMost is the size limit of a file of evidence, in bytes. A check takes about ten times as much memory.
const evidenceMost = 512 << 20

// readEvidence reads a file that somebody else may have written. It may also be a pipe or a device without an end.
func readEvidence(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, protocol.Invalid("file", "%v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, evidenceMost+1))
	if err != nil {
		return nil, protocol.Invalid("file", "%v", err)
	}
	if len(data) > evidenceMost {
		return nil, protocol.Invalid("file", "%s has more than the %d MiB that evidence may have", file, evidenceMost>>20)
	}
	return data, nil
}

// stored checks the history that is stored now.
func (v *verification) stored(ctx context.Context, s *sdk.Sandbox) error {
	e, err := s.Evidence(ctx)
	if err != nil {
		return err
	}
	if v.save != "" {
		if err := saveEvidence(v.save, e); err != nil {
			return err
		}
	}
	r := evidence.Check(e)
	if v.checksOutput {
		for i := range r.Execs {
			if o := &r.Execs[i]; !o.Inline {
				if err := v.checkOutput(ctx, s, r, o); err != nil {
					return err
				}
			}
		}
	}
	return v.report(r)
}

func saveEvidence(file string, e *evidence.Evidence) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if len(data) >= evidenceMost {
		return protocol.Errorf(protocol.ResourceExhausted, protocol.ReasonTooLarge,
			"the evidence has %d MiB, and a file of evidence may have %d MiB: check it without --save", len(data)>>20,
			evidenceMost>>20)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return protocol.Invalid("save", "%v", err)
	}
	_, err = f.Write(append(data, '\n'))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return protocol.Errorf(protocol.Internal, "", "the evidence in %s is incomplete, remove the file: %v", file, err)
	}
	return nil
}

// checkOutput reads the stored output of an exec and compares it with the sizes and hashes in the exec's last event.
func (v *verification) checkOutput(ctx context.Context, s *sdk.Sandbox, r *evidence.Report, o *evidence.Output) error {
	sums := map[string]hash.Hash{sdk.Stdout: sha256.New(), sdk.Stderr: sha256.New()}
	sizes := map[string]int64{}
	problem := func(format string, args ...any) {
		r.Valid = false
		r.Problems = append(r.Problems, fmt.Sprintf("exec %s: ", o.Exec)+fmt.Sprintf(format, args...))
	}
	for k, err := range s.ExecByID(o.Exec).Output(ctx) {
		switch e := protocol.AsError(err); {
		case err == nil:
		case e.Reason == protocol.ReasonOutputNotKept:
			v.note("exec %s: its output is no longer stored, so it was not checked", o.Exec)
			return nil
		case e.Reason == protocol.ReasonOutputDiffers:
			problem("%s", e.Message)
			return nil
		default:
			return err
		}
		sums[k.Stream].Write(k.Data) // never fails
		sizes[k.Stream] += int64(len(k.Data))
	}
	for stream, want := range map[string]struct {
		size int64
		hash string
	}{sdk.Stdout: {o.StdoutBytes, o.StdoutSHA256}, sdk.Stderr: {o.StderrBytes, o.StderrSHA256}} {
		got := hex.EncodeToString(sums[stream].Sum(nil))
		if want.hash != "" && (got != want.hash || sizes[stream] != want.size) {
			problem("its stored %s has %d bytes with the SHA-256 %s, want %d with %s", stream, sizes[stream], got, want.size,
				want.hash)
		}
	}
	return nil
}

// report prints a report. The exit code is 1 if the report is not valid.
func (v *verification) report(r *evidence.Report) error {
	if err := v.show(r, func(w io.Writer) { printReport(w, r) }); err != nil || r.Valid {
		return err
	}
	return exitCode{exitFailure, nil}
}

func printReport(w io.Writer, r *evidence.Report) {
	rows := [][]any{{"RECORD", "EVENTS", "RESULT", "WRITER", "KEY", "KINDS"}}
	for _, m := range r.Messages {
		events := "-"
		if m.First != 0 {
			if events = fmt.Sprint(m.First); m.Last != m.First {
				events = fmt.Sprintf("%d-%d", m.First, m.Last)
			}
		}
		key := m.Key
		if len(key) > shownKey {
			key = key[:shownKey] + "…"
		}
		rows = append(rows, []any{m.Record, events, m.Result, m.Writer, key, strings.Join(m.Kinds, " ")})
	}
	table(w, rows...)
	for _, s := range r.Writers {
		host := ""
		if s.Host != "" {
			host = " of host " + s.Host
		}
		fmt.Fprintf(w, "%s %s%s signed %d messages with key %s\n", s.Role, s.Name, host, s.Messages, s.Key)
	}
	if r.Unsigned > 0 {
		fmt.Fprintf(w, "unsigned up to record %d, from the time before the deployment required signatures: %d messages\n",
			r.Since, r.Unsigned)
	}
	for _, m := range r.Messages {
		if m.Result == evidence.Refused {
			fmt.Fprintf(w, "record %d is refused: %s\n", m.Record, plainLine(m.Why))
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", plainLine(p))
	}
	verdict := "valid"
	if !r.Valid {
		verdict = "NOT valid"
	}
	fmt.Fprintf(w, "%s: %d events, %d messages proven, %d unsigned, %d refused; digest of the evidence %s\n", verdict,
		r.Sequence, r.Proven, r.Unsigned, r.Refused, r.Digest)
}

// shownKey is how many characters of a key the table shows.
const shownKey = 10
