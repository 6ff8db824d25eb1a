package docker

import "maps"

// Labels of the objects that Boxfleet creates on an engine. Every container and network has at least [LabelDeployment],
// by which [Engine.Containers] and [Engine.Networks] find them. A container also gets the labels of its image, so a
// container with these labels was not necessarily created by Boxfleet, see [Container.Doubtful].
const (
	labelPrefix = "boxfleet."

	LabelDeployment = "boxfleet.deployment"
	LabelTenant     = "boxfleet.tenant"
	LabelSandbox    = "boxfleet.sandbox"
	LabelGeneration = "boxfleet.generation"
	LabelRole       = "boxfleet.role"    // primary or service
	LabelService    = "boxfleet.service" // name of the service
	LabelHost       = "boxfleet.host"
	LabelDirectory  = "boxfleet.directory" // the sandbox's directory on the host
	LabelNetwork    = "boxfleet.network"   // only on networks: the network's policy
	LabelGPUs       = "boxfleet.gpus"      // only on containers: the container's GPUs
)

// containerLabels are all labels that containers may have, apart from LabelDeployment. Boxfleet sets all of them on
// each of its containers. Otherwise a container could get such a label from its image.
var containerLabels = []string{LabelTenant, LabelSandbox, LabelGeneration, LabelRole, LabelService, LabelHost,
	LabelDirectory, LabelNetwork, LabelGPUs}

// containerLabelled returns all labels of a container. Labels that the caller does not give are empty.
func (cs *containers) containerLabelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(containerLabels)+1)
	for _, name := range containerLabels {
		all[name] = ""
	}
	maps.Copy(all, cs.labelled(labels))
	return all
}

// labelled returns a copy of the labels, with LabelDeployment added.
func (conn *connection) labelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		all[k] = v
	}
	all[LabelDeployment] = conn.deployment
	return all
}
