// Package registry reads images from registries that the operator has not named. A user who names an image makes the
// host send requests from its own network. Each connection is therefore checked when it is made, so that neither a
// name, a redirect nor a token's realm leads to an address that is not public. Errors never contain a remote server's
// text.
//
//	Client.Open (manifest, over the checked transport) → Image.Write → an archive as docker save writes it
//
//	registry.go   open an image, write it as an archive
//	transport.go  which addresses and hosts may be contacted, and how much is read
//	errors.go     what a failure means
//
// The package imports protocol and imageref.
package registry
