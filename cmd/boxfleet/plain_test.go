package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/boxfleet/boxfleet/protocol"
)

func TestUntrustedTextCannotControlATerminal(t *testing.T) {
	const hostile = "a\x1b]0;owned\x07b\r\u009b2Jc\u202ed\x9be\x7f\nz"
	const shown = `a\x1b]0;owned\x07b\x0d\u009b2Jc\u202ed\x9be\x7f`
	var stdout, stderr bytes.Buffer
	con := &console{stdout: &stdout, stderr: &stderr, config: new(config)}
	info := protocol.Sandbox{ID: "web", Error: protocol.Errorf(protocol.Internal, "", "%s", hostile)}
	info.Spec.Labels = map[string]string{"k": hostile}
	if err := con.show(info, func(w io.Writer) { printSandbox(w, &info) }); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); strings.Count(got, shown+`\nz`) != 2 || strings.ContainsAny(got, "\x1b\r\x07") {
		t.Errorf("a table: %q", got)
	}
	con.complain(info.Error)
	con.note("%s", hostile)
	if got := stderr.String(); strings.Count(got, shown+"\n  z\n") != 2 {
		t.Errorf("an error and a note: %q", got)
	}
	stdout.Reset()
	con.config.Output = outputJSON
	info.Error.Message = strings.ToValidUTF8(hostile, "")
	if err := con.line(info); err != nil {
		t.Fatal(err)
	}
	var back protocol.Sandbox
	if err := json.Unmarshal(stdout.Bytes(), &back); err != nil || back.Error.Message != info.Error.Message ||
		strings.ContainsAny(stdout.String(), "\u009b\u202e\x1b") {
		t.Errorf("JSON: %v, %q", err, stdout.String())
	}
}

func TestNoErrorOrLogContainsAPassword(t *testing.T) {
	clean(t)
	for _, url := range []string{"nats://me:hush-hush@127.0.0.1:1", "me:hush-hush@127.0.0.1:1",
		"nats://hush-hush@127.0.0.1:1", "http://hush-hush@127.0.0.1",
		"nats://me:hush hush@127.0.0.1:1", "nats://me:hush%2dhush@127.0.0.1:x", "nats://me:hush/hush@127.0.0.1:1",
		"hush-hush@:0", "nats://a,hush-hush@127.0.0.1:1"} {
		for _, format := range []string{"text", "json"} {
			if _, stdout, stderr := call(t.Context(), "", "ping", "--nats", url, "-o", format); strings.Contains(stdout+stderr,
				"hush") || stderr == "" {
				t.Errorf("%s: %s%s", url, stdout, stderr)
			}
		}
	}
	var stderr bytes.Buffer
	var cfg config
	cfg.NATS, cfg.Token, cfg.LogLevel = "nats://me:p%40ss%20word@a:1", "tok-tok", "warn"
	before := slog.Default()
	defer slog.SetDefault(before)
	cfg.setLogger(&stderr)
	slog.Warn("refused: p@ss word", "error", protocol.Errorf(protocol.Internal, "", "p%%40ss%%20word"), "at",
		"nats://me:p%40ss%20word@a:1", "token", []string{"tok-tok"})
	if got := stderr.String(); strings.Count(got, "xxxxx") < 4 || strings.Contains(got, "word") ||
		strings.Contains(got, "tok-tok") {
		t.Errorf("the log says %s", got)
	}
}

func TestOnlyTerminalsHaveColours(t *testing.T) {
	var b bytes.Buffer
	table(&plainText{&b, true}, []any{"a", stateColour("failed, x"), "b"}, []any{"aaa", "c", "d"})
	if got := b.String(); got != "a     \x1b[31mfailed, x\x1b[0m   b\naaa   c           d\n" {
		t.Errorf("got %q", got)
	}
	if coloured(&b) {
		t.Error("a buffer has colours")
	}
}
