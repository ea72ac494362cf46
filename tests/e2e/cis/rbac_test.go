package cis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noneOfOurs checks that none of kedge's own roles has such a rule. Upstream's roles are as
// upstream made them.
func noneOfOurs(such func(rbacv1.PolicyRule) bool) func(*bench) error {
	return func(b *bench) error {
		rules := map[string][]rbacv1.PolicyRule{}
		cluster, err := b.Client.RbacV1().ClusterRoles().List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, role := range cluster.Items {
			rules[role.Name] = append(rules[role.Name], role.Rules...)
		}
		namespaced, err := b.Client.RbacV1().Roles("").List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, role := range namespaced.Items {
			rules[role.Name] = append(rules[role.Name], role.Rules...)
		}
		var faults []error
		ours := 0
		for name, all := range rules {
			if !strings.Contains(name, "kedge:") {
				continue
			}
			ours++
			if slices.ContainsFunc(all, such) {
				faults = append(faults, fmt.Errorf("%s has it", name))
			}
		}
		if ours == 0 {
			faults = append(faults, errors.New("kedge has no roles"))
		}
		return errors.Join(faults...)
	}
}

// allows returns a function that tells whether a rule is for one of these resources with one of
// these verbs.
func allows(resources string, verbs ...string) func(rbacv1.PolicyRule) bool {
	return func(rule rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(strings.Fields(resources), func(resource string) bool { return slices.Contains(rule.Resources, resource) }) &&
			(len(verbs) == 0 || slices.ContainsFunc(verbs, func(verb string) bool { return slices.Contains(rule.Verbs, verb) }))
	}
}

func wildcard(rule rbacv1.PolicyRule) bool {
	return slices.Contains(slices.Concat(rule.Verbs, rule.Resources, rule.APIGroups, rule.NonResourceURLs), rbacv1.VerbAll)
}

func escalates(rule rbacv1.PolicyRule) bool {
	return slices.ContainsFunc([]string{"bind", "impersonate", "escalate"}, func(verb string) bool { return slices.Contains(rule.Verbs, verb) })
}

// noMaster asks for the user name and the groups of the kubeconfig's administrator.
func noMaster(b *bench) error {
	review, err := b.Client.AuthenticationV1().SelfSubjectReviews().Create(b.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil && slices.Contains(review.Status.UserInfo.Groups, "system:masters") {
		err = fmt.Errorf("the administrator is in %v", review.Status.UserInfo.Groups)
	}
	return err
}
