// Package images manages the images that the worker brought to its host: images for sandboxes, images that the
// configuration lists, and imported images.
//
//	images.go     Images.Get returns an image; Images.Run does all background work of a tenure
//	config.go     the operator's settings
//	pull.go       find an image on the host, or pull it: through the engine, or from a public registry
//	imports.go    import images from files, and remove imports that the deployment no longer wants
//	sweep.go      remove unused images when the disk is too full or images exceed their own limit
//	report.go     publish which images the host has
//	inventory.go  the record, in a file, of the names that the worker gave to images, and what needs them
//
// The worker never changes a name that another client of the engine gave to an image. Only an image that the engine
// pulled has the same name on the host as in specs. The other images have names that only the worker uses; see
// imageref.Local.
//
// The package imports protocol, imageref, imagetar, backoff, wake, worker/docker for the engine's images and
// worker/registry for images from public registries. It does not import worker.
package images
