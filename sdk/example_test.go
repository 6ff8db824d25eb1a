package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/protocol"
	"github.com/boxfleet/boxfleet/sdk"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := sdk.Connect(ctx, sdk.Options{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	box, err := client.Create(ctx, protocol.SandboxSpec{Image: "boxfleet/demo:busybox"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := box.Exec(ctx, protocol.ExecSpec{Command: []string{"sh", "-c", "echo hello; exit 3"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s and exit code %d\n", result.Stdout, *result.ExitCode)
	if err := box.Delete(ctx); err != nil {
		log.Fatal(err)
	}
}

// Output streams as it comes; the exec can be cancelled from elsewhere.
func ExampleSandbox_Exec_streaming() {
	ctx := context.Background()
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	result, err := client.Sandbox("web").Exec(ctx,
		protocol.ExecSpec{Command: []string{"go", "test", "./..."}, Timeout: protocol.Duration(10 * time.Minute)},
		sdk.WithStdout(os.Stdout), sdk.WithStderr(os.Stderr))
	switch {
	case errors.Is(err, protocol.ErrDeadlineExceeded) && result != nil:
		fmt.Println("ran longer than ten minutes")
	case err != nil:
		log.Fatal(err)
	}
}

// Start an exec, and read its stdout from elsewhere or later.
func ExampleExec_Reader() {
	ctx := context.Background()
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	x, err := client.Sandbox("web").Start(ctx, protocol.ExecSpec{Command: []string{"make"}})
	if err != nil {
		log.Fatal(err)
	}
	stdout := x.Reader(ctx, sdk.Stdout)
	defer stdout.Close()
	if _, err := io.Copy(os.Stdout, stdout); err != nil {
		log.Fatal(err)
	}
}

// Replay a history and go on with what comes.
func ExampleClient_Events() {
	ctx := context.Background()
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for e, err := range client.Events(ctx, "web", 1, true) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Sequence, e.Kind, e.State, e.Replay)
	}
}

// Give a sandbox a directory of this machine.
func ExampleClient_CopyTree() {
	ctx := context.Background()
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	source, err := client.CopyTree(ctx, ".", "/src", ".git")
	if err != nil {
		log.Fatal(err)
	}
	box, err := client.Create(ctx, protocol.SandboxSpec{Image: "boxfleet/demo:busybox", Copies: []protocol.Copy{source}}, sdk.WithID("build-1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(box.Info().State)
}

func ExampleWithYAML() {
	ctx := context.Background()
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	text := []byte("image: boxfleet/demo:busybox\nenv: {GREETING: \"hello ${WHO:-world}\"}\n")
	// The spec that is given goes over the YAML.
	box, err := client.Create(ctx, protocol.SandboxSpec{Memory: 1 << 30}, sdk.WithYAML(text, map[string]string{"WHO": "Ada"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(box.Info().Spec.Env["GREETING"])
}
