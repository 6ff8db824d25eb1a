package docker

import "maps"

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
func (cs *containers) containerLabelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(containerLabels)+1)
	for _, name := range containerLabels {
		all[name] = ""
	}
	maps.Copy(all, cs.labelled(labels))
	return all
}

// labelled returns the labels and the deployment's label.
func (conn *connection) labelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		all[k] = v
	}
	all[LabelDeployment] = conn.deployment
	return all
}
