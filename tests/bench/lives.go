package bench

import "fmt"

const (
	// The sizes of the targets, before livedOptions.Part divides them.
	customEach     = 100
	appPods        = 20
	mixedObjects   = 200
	churnMinutes   = 60
	largeObjects   = 500
	middleObjects  = 4000
	smallObjects   = 10_000
	allObjects     = 100_000
	hollowHalf     = 500
	podsPerHollow  = 5
	largeObjectKiB = 64
	middleKiB      = 8
)

// The names of the steps that the table compares.
const (
	stepCertManager = "+ 6 CRDs of cert-manager"
	stepCustom      = "+ objects of these CRDs, and controllers"
	stepFurther     = "+ 20 CRDs of traefik and gateway-api"
	stepOperators   = "+ all 41 CRDs"
	stepChurn       = "+ an hour's churn"
	stepMiddle      = "+ Secrets of 8 KiB"
	stepSmall       = "+ ConfigMaps of 1 KiB"
	stepAll         = "+ the other nine tenths of them"
	stepHollow      = "+ the other half of them"
)

// These are the units of which the table says what one takes, as in MiB per CRD.
const (
	unitCRD    = "CRD"
	unitPod    = "pod"
	unitObject = "object"
	unitNode   = "node"
)

// lives are what TestLived measures.
var lives = []life{
	{name: "custom", title: "custom resources", steps: (*livedCluster).customLife},
	{name: "node", title: "a node with the usual things", steps: (*livedCluster).nodeLife},
	{name: "objects", title: "many objects", steps: (*livedCluster).objectsLife},
	{name: "hollow", title: "many nodes, with 5 pods each", alone: true, steps: (*livedCluster).hollowLife},
}

// customLife adds CustomResourceDefinitions without objects, then objects of them. Then nobody
// changes these objects for as long as after a burst. kedge keeps what serves a kind for five minutes
// after the last change.
func (c *livedCluster) customLife() []livedStep {
	core := &customResources{cluster: c, projects: []string{"prometheus-operator", "argo-rollouts", "cert-manager"}, each: c.options.of(customEach)}
	further := &customResources{cluster: c, projects: []string{"traefik", "gateway-api"}}
	return []livedStep{
		{name: "+ 10 CRDs of prometheus-operator", unit: unitCRD, number: 10, do: core.define(0)},
		{name: "+ 5 CRDs of argo-rollouts", unit: unitCRD, number: 5, do: core.define(1)},
		{name: stepCertManager, unit: unitCRD, number: 6, do: core.define(2), undo: core.undefine},
		{name: stepCustom, burst: true, do: core.use, undo: core.unuse},
		{name: stepFurther, unit: unitCRD, number: 20, do: further.define(0, 1), undo: further.undefine},
	}
}

// nodeLife is that of a node at somebody's home.
func (c *livedCluster) nodeLife() []livedStep {
	pods := c.options.of(appPods)
	first, second := &apps{cluster: c, first: 0, pods: pods}, &apps{cluster: c, first: pods, pods: pods}
	objects := &filling{cluster: c, prefix: "mixed", to: c.options.of(mixedObjects), of: mixedObject}
	operators := &customResources{cluster: c, projects: []string{"prometheus-operator", "argo-rollouts", "cert-manager", "traefik", "gateway-api"}}
	churn := &churn{cluster: c, apps: first, minutes: c.options.of(churnMinutes)}
	return []livedStep{
		{name: "+ pods", unit: unitPod, number: first.pods, do: first.run, undo: first.remove},
		{name: "+ as many again", unit: unitPod, number: second.pods, again: true, do: second.run, undo: second.remove},
		{name: fmt.Sprintf("+ %d ConfigMaps and Secrets, 1 to 64 KiB", objects.to), unit: unitObject, number: objects.to, do: objects.fill, undo: objects.remove},
		{name: stepOperators, unit: unitCRD, number: 41, do: operators.define(0, 1, 2, 3, 4), undo: operators.undefine},
		{name: stepChurn, burst: true, do: churn.run, undo: churn.remove},
	}
}

// objectsLife adds objects of several sizes. The smallest come in two steps, to see how they grow.
func (c *livedCluster) objectsLife() []livedStep {
	large := &filling{cluster: c, prefix: "large", to: c.options.of(largeObjects), of: ofSize(false, largeObjectKiB)}
	middle := &filling{cluster: c, prefix: "middle", to: c.options.of(middleObjects), of: ofSize(true, middleKiB)}
	small := &filling{cluster: c, prefix: "small", to: c.options.of(smallObjects), of: ofSize(false, 1)}
	rest := &filling{cluster: c, prefix: "small", from: small.to, to: c.options.of(allObjects), of: small.of}
	return []livedStep{
		{name: "+ ConfigMaps of 64 KiB", unit: unitObject, number: large.to, do: large.fill, undo: large.remove},
		{name: stepMiddle, unit: unitObject, number: middle.to, do: middle.fill, undo: middle.remove},
		{name: stepSmall, unit: unitObject, number: small.to, do: small.fill},
		{name: stepAll, unit: unitObject, number: rest.to - rest.from, again: true, do: rest.fill, undo: rest.remove},
	}
}

// hollowLife adds nodes that nobody runs, with pods.
func (c *livedCluster) hollowLife() []livedStep {
	nodes := &hollowNodes{cluster: c}
	half := c.options.of(hollowHalf)
	add := livedStep{name: "+ nodes", unit: unitNode, number: half, do: nodes.add(half)}
	again := livedStep{name: stepHollow, unit: unitNode, number: half, again: true, do: nodes.add(half), undo: nodes.remove}
	return []livedStep{add, again}
}
