// Package environment is one small interface to run commands and code somewhere, and to use files there, whatever lies
// behind it: a sandbox of a fleet, a container, another machine over SSH, or this machine.
//
//	env := fleet.New(box) // or docker.Start, ssh.New, local.New, shell.New
//	result, err := environment.Execute(ctx, env, "go test ./...", environment.Options{Timeout: time.Minute})
//	var late *environment.TimeoutError
//	switch {
//	case errors.As(err, &late):
//		fmt.Printf("too slow; it printed %s", late.Result.Stdout)
//	case err == nil:
//		fmt.Printf("exit code %d: %s", result.ExitCode, result.Stdout)
//	}
//
// # The interface
//
//	ExecuteStreaming      runs a command with a POSIX shell: chunks of output, then one result
//	ExecuteCodeStreaming  runs code with an interpreter, in the same way
//	ReadFile, WriteFile, RemoveFile, ListFiles
//	Describe              says what the environment is, and what it can do
//
// [Execute], [ExecuteCode], [ReadText] and [WriteText] are built on these calls. Package conformance checks what each
// call must do; package environmenttest runs these checks with go test, and has an environment in memory for tests.
//
// # What every environment promises
//
//   - Executions are stateless: cd and export end with the command. Concurrent executions do not see each other.
//   - The standard input of a command is empty.
//   - The result waits for the command, not for processes that it left in the background.
//   - A command that exits non-zero is a result. An error says that the command could not run, or did not end by
//     itself.
//   - A timeout ends the command with its processes, and keeps the output up to then.
//   - When the context ends, or the caller leaves the loop, the command is ended too.
//   - Output and files are bytes: nothing is changed, whatever the encoding.
//   - A file is replaced atomically: a reader sees the old content or the new one.
//   - An option that an environment cannot apply is refused with [ErrUnsupported].
//   - Optional abilities are listed in [Description.Capabilities]; a caller asks before it calls.
//
// The package imports no other package of this module, so that any package can implement the interface.
package environment
