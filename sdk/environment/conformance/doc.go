// Package conformance is a table of what every environment must do, and runs it against one.
//
//	for outcome := range conformance.Run(ctx, env, conformance.Options{}) {
//		fmt.Println(outcome.State, outcome.Group, outcome.Name, outcome.Err)
//	}
//
// Each row is a behaviour: its name, its group, the capabilities that it needs, and a check. A behaviour passes, fails,
// or is missing: the environment does not have a capability, or the system in it has no program that the check needs.
// Checks work below one directory of the environment, which the run removes at the end if the environment has the
// capability POSIX. Package environmenttest runs the table with go test, and `boxfleet conformance` prints it.
//
// The package imports only sdk/environment.
package conformance
