// Package deploy has no code. Its tests start the files of this directory as an operator would:
//
//	nats/    configuration of one NATS server, and of a cluster of three
//
// The package imports nothing.
package deploy
