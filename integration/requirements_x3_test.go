package integration

import (
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

// TestX3_PythonAndNodeTakeCodeOnStdinAndFromAFile uses an image with Debian's Python and Node. The code arrives byte
// for byte, including quotes, newlines and special characters.
func TestX3_PythonAndNodeTakeCodeOnStdinAndFromAFile(t *testing.T) {
	t.Parallel()
	image(t, debianImage)
	f := fleet.Start(t, fleet.Options{})
	ctx := f.Context(2 * time.Minute)
	spec := f.Spec()
	spec.Image, spec.User, spec.Memory = debianImage, "box", 256<<20
	s, err := f.Client.Create(ctx, spec, sdk.WithID("x3-debian"))
	if err != nil {
		t.Fatal(err)
	}
	const text = `it's "6*7" $(not run) \n é`
	for _, c := range []struct{ interpreter, code string }{
		{"python3",
			"import sys, os\ntext = '''" + `it's "6*7" $(not run) \\n é` + "'''\nprint(text)\nsys.exit(os.getuid() - 997)\n"},
		{"node",
			"const text = `" + `it's "6*7" $(not run) \\n é` + "`\nconsole.log(text)\nprocess.exit(process.getuid() - 997)\n"},
	} {
		r, err := s.RunCode(ctx, c.interpreter, c.code)
		if err != nil || string(r.Stdout) != text+"\n" || code(r) != "3" {
			t.Errorf("%s, on stdin: %v, exit code %s, %q, stderr %q", c.interpreter, err, code(r), r.Stdout, r.Stderr)
		}
		put := protocol.ExecSpec{Command: []string{"tee", "/home/box/code"}, Stdin: []byte(c.code)}
		if r, err := s.Exec(ctx, put); err != nil || code(r) != "0" {
			t.Fatalf("write the file: %v, %s", err, r.Stderr)
		}
		r, err = s.Exec(ctx, protocol.ExecSpec{Command: []string{c.interpreter, "/home/box/code"}})
		if err != nil || string(r.Stdout) != text+"\n" || code(r) != "3" {
			t.Errorf("%s, from a file: %v, exit code %s, %q, stderr %q", c.interpreter, err, code(r), r.Stdout,
				r.Stderr)
		}
	}
}
