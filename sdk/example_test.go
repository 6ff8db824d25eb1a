package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/boxfleet/boxfleet/sdk"
)

// Create a sandbox, run a command in it, delete it.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := sdk.Connect(ctx, sdk.Options{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	box, err := client.Create(ctx, sdk.SandboxSpec{Image: "boxfleet/demo:busybox"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := box.Exec(ctx, sdk.ExecSpec{Command: []string{"sh", "-c", "echo hello; exit 3"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s and exit code %d\n", result.Stdout, *result.ExitCode)
	if err := box.Delete(ctx); err != nil {
		log.Fatal(err)
	}
}

// connect connects to the fleet of this machine.
func connect(ctx context.Context) *sdk.Client {
	client, err := sdk.Connect(ctx, sdk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// Stream output as it arrives.
func ExampleSandbox_Exec_streaming() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	result, err := client.Sandbox("web").Exec(ctx,
		sdk.ExecSpec{Command: []string{"go", "test", "./..."}, Timeout: sdk.Duration(10 * time.Minute)},
		sdk.WithStdout(os.Stdout), sdk.WithStderr(os.Stderr))
	switch {
	case errors.Is(err, sdk.ErrDeadlineExceeded) && result != nil:
		fmt.Println("ran longer than ten minutes")
	case err != nil:
		log.Fatal(err)
	}
}

// Share one sandbox among all processes that ensure its name, and run a command as os/exec does.
func ExampleSandbox_Command() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	box, err := client.Ensure(ctx, "web", sdk.SandboxSpec{Image: "boxfleet/demo:busybox"})
	if err != nil {
		log.Fatal(err)
	}
	out, err := box.Command(ctx, "uname", "-a").Output()
	var exit *sdk.ExitError
	if errors.As(err, &exit) {
		log.Fatalf("exit code %d: %s", exit.ExitCode(), exit.Stderr)
	} else if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
}

// Start an exec, and read its stdout elsewhere or later.
func ExampleExec_Reader() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	x, err := client.Sandbox("web").Start(ctx, sdk.ExecSpec{Command: []string{"make"}})
	if err != nil {
		log.Fatal(err)
	}
	stdout := x.Reader(ctx, sdk.Stdout, 0)
	defer stdout.Close()
	if _, err := io.Copy(os.Stdout, stdout); err != nil {
		log.Fatal(err)
	}
}

// Resume an interrupted read of output where it stopped, with only the exec's id and the offsets.
func ExampleExec_Output_resume() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	next := map[string]int64{sdk.Stdout: 4096, sdk.Stderr: 0} // what an earlier process has read
	x := client.Sandbox("web").ExecByID("build-1")
	for chunk, err := range x.Output(ctx, sdk.WithFollow(true),
		sdk.WithOffset(sdk.Stdout, next[sdk.Stdout]), sdk.WithOffset(sdk.Stderr, next[sdk.Stderr])) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s", chunk.Stream, chunk.Data)
		next[chunk.Stream] = chunk.Offset + int64(len(chunk.Data))
	}
	result, err := x.Wait(ctx, sdk.WithCollect(0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", *result.ExitCode)
}

// Read the history of a sandbox, and follow it until the sandbox is deleted.
func ExampleSandbox_Events() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	for e, err := range client.Sandbox("web").Events(ctx, sdk.WithFollow(true)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Sequence, e.Kind, e.State, e.Replay)
	}
}

// Give a sandbox a directory of this machine.
func ExampleClient_Upload() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	source, err := client.Upload(ctx, ".", "/src", sdk.WithExclude(".git"))
	if err != nil {
		log.Fatal(err)
	}
	box, err := client.Create(ctx, sdk.SandboxSpec{Image: "boxfleet/demo:busybox", Copies: []sdk.Copy{source}},
		sdk.WithID("build-1"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(box.Info().State)
}

// List sandboxes by label.
func ExampleClient_List() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	for box, err := range client.List(ctx, sdk.WithLabels(map[string]string{"team": "build"}),
		sdk.WithStates(sdk.StateReady)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(box.ID(), box.Info().Worker)
	}
}

// Create a sandbox from YAML. The spec argument is merged over the document.
func ExampleWithYAML() {
	ctx := context.Background()
	client := connect(ctx)
	defer client.Close()
	text := []byte("image: boxfleet/demo:busybox\nenv: {GREETING: \"hello ${WHO:-world}\"}\n")
	box, err := client.Create(ctx, sdk.SandboxSpec{Memory: 1 << 30}, sdk.WithYAML(text, map[string]string{"WHO": "Ada"}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(box.Info().Spec.Env["GREETING"])
}
