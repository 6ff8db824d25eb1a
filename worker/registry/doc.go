// Package registry reads images from registries that the operator has not named. A user who names an image makes the
// worker send requests from the host's network. The package therefore checks the address of each connection at the
// moment it connects. So the worker connects to no address that is not public, even if a registry's name, a redirect or
// the realm of a token leads to such an address. Errors never contain text from a remote server.
//
//	Client.Open (manifest, over the checked transport) → Image.Write → an archive as docker save writes it
//
//	registry.go   open an image, write it as an archive
//	transport.go  which addresses and hosts may be contacted, and how much is read
//	errors.go     what a failure means
//
// The package imports protocol and imageref.
package registry
