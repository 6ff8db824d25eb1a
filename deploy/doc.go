// Package deploy has no code. Its tests start the files of this directory as an operator would:
//
//	nats/       configuration of one NATS server, and of a cluster of three
//	systemd/    units, users and modes of files
//	deb/        Debian packages of all this
//	image/      images of the coordinator and of NATS, with one static program each
//	compose/    three NATS servers and two coordinators on one machine
//
// The package imports nothing.
package deploy
