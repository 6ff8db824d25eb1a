package docker

import (
	"context"
	"maps"
	"strings"
)

// Labels of what Boxfleet makes on an engine. Every container and network carries at least
// [LabelDeployment], which is how [Engine.Containers] and [Engine.Networks] find them. The engine gives a
// container its image's labels as well, so one that carries them need not be Boxfleet's, see
// [Container.Doubtful].
const (
	labelPrefix = "boxfleet."

	LabelDeployment = "boxfleet.deployment"
	LabelTenant     = "boxfleet.tenant"
	LabelSandbox    = "boxfleet.sandbox"
	LabelGeneration = "boxfleet.generation"
	LabelRole       = "boxfleet.role"    // primary or service
	LabelService    = "boxfleet.service" // its name
	LabelHost       = "boxfleet.host"
	LabelDirectory  = "boxfleet.directory" // of the sandbox, on the host
	LabelNetwork    = "boxfleet.network"   // of a network: what may be reached from it
	LabelGPUs       = "boxfleet.gpus"      // of a container: which GPUs it has
)

// containerLabels are all that a container may have. One of Boxfleet's has each of them, so that none is its
// image's.
var containerLabels = []string{LabelTenant, LabelSandbox, LabelGeneration, LabelRole, LabelService, LabelHost, LabelDirectory, LabelNetwork, LabelGPUs}

// containerLabelled returns the labels of a container: those that it does not need are empty.
func (e *Engine) containerLabelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(containerLabels)+1)
	for _, name := range containerLabels {
		all[name] = ""
	}
	maps.Copy(all, e.labelled(labels))
	return all
}

// maxImageLabels bounds what is remembered of images; beyond it all is asked for again.
const maxImageLabels = 10_000

// labelsOf says whether an image, by its id, carries labels of Boxfleet's. What an image has under its id
// never changes, so it is asked once. Of one that is gone nobody knows.
func (e *Engine) labelsOf(ctx context.Context, image string) (has bool, err error) {
	e.mu.Lock()
	has, known := e.imageLabels[image]
	e.mu.Unlock()
	if known {
		return has, nil
	}
	got, err := e.client.ImageInspect(ctx, image)
	if err != nil && (ctx.Err() != nil || unanswered(err)) {
		return true, err
	}
	if err != nil { // it is gone, or broken
		return true, nil
	}
	if got.Config != nil {
		for name := range got.Config.Labels {
			has = has || strings.HasPrefix(name, labelPrefix)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.imageLabels) >= maxImageLabels {
		clear(e.imageLabels)
	}
	e.imageLabels[image] = has
	return has, nil
}

// labelled returns labels with the deployment's label added.
func (e *Engine) labelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		all[k] = v
	}
	all[LabelDeployment] = e.deployment
	return all
}
