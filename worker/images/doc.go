// Package images manages the images that the worker brought to its host: those pulled for sandboxes, those that the
// configuration lists, and those that were imported.
//
//	images.go     Get an image for a container; Run everything below until the tenure ends
//	config.go     the operator's settings
//	pull.go       find an image on the host, or pull it: through the engine, or from a public registry
//	imports.go    keep imported images as the deployment wants them
//	sweep.go      remove unused images when the disk or their own limit is exceeded
//	report.go     publish which images the host has
//	inventory.go  the record of the names that the worker gave, kept in a file, and who needs them
//
// The worker owns names, not contents: names that somebody else gave to an image stay. Only an image that the engine
// pulled has the same name on the host as in specs; the others have names of the worker's own, see imageref.Local.
//
// The package imports protocol, imageref, imagetar, backoff, wake, worker/docker for the engine's images and
// worker/registry for images from public registries. It does not import worker.
package images
