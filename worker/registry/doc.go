// Package registry reads images from registries that nobody vouches for. Who names an image has the host
// send requests from its own network; here, each connection is checked as it is made, so neither a name,
// a redirect nor a token's realm leads to an address that is not public. No error has a text of a remote
// server in it.
//
//	Client.Open (manifest, by the checked transport) → Image.Write → an archive as docker save writes it
//
// It may import protocol and imageref.
package registry
