package docker

import (
	"context"
	"maps"
	"strings"
)

// Labels of the objects that Boxfleet creates on an engine. Every container and network has at least [LabelDeployment],
// by which [Engine.Containers] and [Engine.Networks] find them. A container also gets the labels of its image, so a
// container with these labels need not be Boxfleet's, see [Container.Doubtful].
const (
	labelPrefix = "boxfleet."

	LabelDeployment = "boxfleet.deployment"
	LabelTenant     = "boxfleet.tenant"
	LabelSandbox    = "boxfleet.sandbox"
	LabelGeneration = "boxfleet.generation"
	LabelRole       = "boxfleet.role"    // primary or service
	LabelService    = "boxfleet.service" // name of the service
	LabelHost       = "boxfleet.host"
	LabelDirectory  = "boxfleet.directory" // of the sandbox, on the host
	LabelNetwork    = "boxfleet.network"   // of a network: its policy
	LabelGPUs       = "boxfleet.gpus"      // of a container: its GPUs
)

// containerLabels are all labels that a container may have. A container of Boxfleet gets each of them, so that none
// comes from its image.
var containerLabels = []string{LabelTenant, LabelSandbox, LabelGeneration, LabelRole, LabelService, LabelHost,
	LabelDirectory, LabelNetwork, LabelGPUs}

// containerLabelled returns all labels of a container; those without a value are empty.
func (e *Engine) containerLabelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(containerLabels)+1)
	for _, name := range containerLabels {
		all[name] = ""
	}
	maps.Copy(all, e.labelled(labels))
	return all
}

// maxImageLabels is the maximum number of cached images; the cache is cleared when it is full.
const maxImageLabels = 10_000

// labelsOf reports whether an image, by its id, has Boxfleet labels, or is gone. The labels under an id never change,
// so the engine is asked once.
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
	if err != nil { // gone or broken
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

// labelled returns the labels and the deployment's label.
func (e *Engine) labelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		all[k] = v
	}
	all[LabelDeployment] = e.deployment
	return all
}
