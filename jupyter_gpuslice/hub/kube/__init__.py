"""Pods for Kubernetes: what a request is in the words of the cluster's GPU-sharing stack."""
