"""etcd, kube-apiserver and kube-controller-manager as supervised children of an ordinary user.

How the program uses it::

    async with plane.prepared(settings) as control_plane:      # lock, ports, certificates: below 0.1 s
        async with asyncio.TaskGroup() as outer:
            running = outer.create_task(forever.forever("control plane", control_plane.run()))
            await control_plane.serving.wait()                 # register the node, serve the kubelet
            async with asyncio.TaskGroup() as inner: ...       # kubelet and binder
            running.cancel()                                   # only when the kubelet has said its last word

The kubelet lives in an inner group so that the API server is still there for its last status updates.
``control_plane.ready`` follows once pods can be created.  What others need: ``url``, ``ca_pem``,
``admin_kubeconfig``, ``kubelet_kubeconfig``, ``binder_kubeconfig``, ``kubelet_certificate``, ``kubelet_port``
(listen on its port on all addresses), ``link`` (the agents' authority), ``book`` (hold more ports by name),
``api_address`` and ``api_port`` (for pods).

``python -m hpk.controlplane --state DIR`` runs it alone, for developers.
"""
