// Package fleet makes an environment of a sandbox of a Boxfleet fleet, over the SDK.
//
//	box, err := client.Create(ctx, sdk.SandboxSpec{Image: "python:3.13"})
//	env := fleet.New(box)
//
// Commands are execs with their own ids, limits and records in the log; files go through the file operations of the
// fleet and need no shell in the image. The sandbox stays when the program ends: the program that made it deletes it.
//
// The package imports only sdk, sdk/environment and protocol.
package fleet
