package protocol

import "time"

// PullProgress says how far the pull of an image is. What is not known yet is 0: the sizes of layers
// become known one by one.
type PullProgress struct {
	Image      string `json:"image"`           // full reference
	Done       Bytes  `json:"done,omitempty"`  // downloaded
	Total      Bytes  `json:"total,omitempty"` // of the layers that are downloaded, as far as it is known
	Layers     int    `json:"layers,omitempty"`
	LayersDone int    `json:"layers_done,omitempty"`
	Try        int    `json:"try,omitempty"` // from 1; more where the registry was not reached
	Complete   bool   `json:"complete,omitempty"`
}

// Formats of an image's file.
const (
	ImageArchive = "archive" // of docker save, or an OCI image layout, as tar
	ImageRootFS  = "rootfs"  // a root filesystem, as tar
)

// WantedImage is an image that was imported: hosts that do not have it get it from its file in the
// object store.
type WantedImage struct {
	Version int       `json:"v"`
	Ref     string    `json:"ref"`               // full reference
	Digest  string    `json:"digest"`            // "sha256-" and 64 hex digits, of the file
	Size    Bytes     `json:"size"`              // of the file
	Format  string    `json:"format"`            // archive or rootfs
	Changes []string  `json:"changes,omitempty"` // Dockerfile instructions, of a root filesystem
	Workers []string  `json:"workers,omitempty"` // that should have it; none: all
	Time    time.Time `json:"time"`
}

// Origins of an image on a host.
const (
	ImagePulled   = "pulled"   // for a sandbox
	ImagePrePull  = "pre_pull" // because the worker's configuration says so
	ImageImported = "imported"
)

// States of an image on a host.
const (
	ImageReady   = "ready"
	ImageLoading = "loading"
	ImageFailed  = "failed" // and is tried again
)

// HostImages is what a worker says of the images of its host. Images are those that it looks after;
// Names are of all, whoever brought them.
type HostImages struct {
	Version  int         `json:"v"`
	Worker   string      `json:"worker"`
	HostID   string      `json:"host_id"`
	Instance string      `json:"instance,omitempty"` // of the worker that says it, one per process
	Images   []HostImage `json:"images,omitempty"`
	Listed   bool        `json:"listed,omitempty"`    // Names are known
	Names    []string    `json:"names,omitempty"`     // full references: with tags, with digests, and of ids; sorted
	Cut      bool        `json:"names_cut,omitempty"` // there are more names than these
	Time     time.Time   `json:"time"`
}

// HostImage is an image on a host.
type HostImage struct {
	Ref    string    `json:"ref"` // full reference; an id for what a later pull took the name from
	Origin string    `json:"origin"`
	State  string    `json:"state"`
	ID     string    `json:"id,omitempty"`
	Size   Bytes     `json:"size,omitempty"`
	File   string    `json:"file,omitempty"` // digest of the imported file
	Error  *Error    `json:"error,omitempty"`
	UsedAt time.Time `json:"used_at,omitempty,omitzero"` // by a sandbox
}
