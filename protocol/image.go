package protocol

import "time"

// PullProgress is the progress of an image pull. Unknown values are 0: layer sizes become known one by one.
type PullProgress struct {
	Image      string `json:"image"`           // full reference
	Done       Bytes  `json:"done,omitempty"`  // bytes downloaded
	Total      Bytes  `json:"total,omitempty"` // size of the layers to download, as far as known
	Layers     int    `json:"layers,omitempty"`
	LayersDone int    `json:"layers_done,omitempty"`
	Try        int    `json:"try,omitempty"` // number of this attempt, from 1; an unreachable registry is tried again
	Complete   bool   `json:"complete,omitempty"`
}

// Formats of an imported image file.
const (
	ImageArchive = "archive" // written by docker save, or an OCI image layout, as tar
	ImageRootFS  = "rootfs"  // root filesystem, as tar
)

// WantedImage is an imported image. A host that lacks the image loads it from a file in the object store.
type WantedImage struct {
	Version int       `json:"v"`
	Ref     string    `json:"ref"`               // full reference
	Digest  string    `json:"digest"`            // digest of the file: "sha256-" and 64 hex digits
	Size    Bytes     `json:"size"`              // size of the file
	Format  string    `json:"format"`            // archive or rootfs
	Changes []string  `json:"changes,omitempty"` // Dockerfile instructions to apply to a root filesystem
	Workers []string  `json:"workers,omitempty"` // workers that get the image; empty: all
	Time    time.Time `json:"time"`
}

// Origins of an image on a host.
const (
	ImagePulled   = "pulled"   // pulled for a sandbox
	ImagePrePull  = "pre_pull" // requested by the worker's configuration
	ImageImported = "imported"
)

// States of an image on a host.
const (
	ImageReady   = "ready"
	ImageLoading = "loading"
	ImageFailed  = "failed" // will be retried
)

// HostImages is a worker's report on the images of its host. Images lists the images that the worker manages. Names has
// the names of every image on the host.
type HostImages struct {
	Version  int         `json:"v"`
	Worker   string      `json:"worker"`
	HostID   string      `json:"host_id"`
	Instance string      `json:"instance,omitempty"` // the reporting worker process
	Images   []HostImage `json:"images,omitempty"`
	Listed   bool        `json:"listed,omitempty"`    // Names is filled in
	Names    []string    `json:"names,omitempty"`     // full references with tags, digests or ids; sorted
	Cut      bool        `json:"names_cut,omitempty"` // Names is incomplete
	Time     time.Time   `json:"time"`
}

// HostImage is an image on a host.
type HostImage struct {
	Ref    string    `json:"ref"` // full reference, or the image's id if a later pull took over the reference
	Origin string    `json:"origin"`
	State  string    `json:"state"`
	ID     string    `json:"id,omitempty"`
	Size   Bytes     `json:"size,omitempty"`
	File   string    `json:"file,omitempty"` // digest of the imported file
	Error  *Error    `json:"error,omitempty"`
	UsedAt time.Time `json:"used_at,omitempty,omitzero"` // last use by a sandbox
}
