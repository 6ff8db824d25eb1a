package docker

// Labels of what Boxfleet makes on an engine. Every container and network carries at least
// [LabelDeployment], which is how [Engine.Containers] and [Engine.Networks] find them.
const (
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

// labelled returns labels with the deployment's label added.
func (e *Engine) labelled(labels map[string]string) map[string]string {
	all := make(map[string]string, len(labels)+1)
	for k, v := range labels {
		all[k] = v
	}
	all[LabelDeployment] = e.deployment
	return all
}
