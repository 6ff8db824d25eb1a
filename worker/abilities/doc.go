// Package abilities knows what a host can do, and what its operator allows sandboxes to use.
//
//	abilities.go  checks a spec against the operator's rules and the engine's abilities
//	gpus.go       which sandbox holds which of the host's GPUs
//	posture.go    how well the engine separates sandboxes, with its known vulnerabilities
//
// The package imports protocol and worker/docker.
package abilities
